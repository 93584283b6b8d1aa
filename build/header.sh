#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# eessi-arch-guard @VERSION@ @BUILD@: this sh header, then a zip archive that Python imports from (build/pyz.py).
# Nothing here uses PATH (the job's has tools for another CPU) or a command that an exported function can shadow:
# only special builtins, which a POSIX sh finds first. A file is looked for with a pattern that matches only itself.
case "$*" in
*--chain* | *--clean*) ;;
'' | --shell | --timeout* | --prolog-line-max* | --syslog*)
    case ${EESSI_SOFTWARE_SUBDIR:+loaded}${EESSI_ARCH_GUARD_VERBOSE:+verbose} in '') exit 0 ;; esac
    case ${EESSI_ARCH_GUARD_VERBOSE-},${EESSI_ARCH_GUARD-} in
    ,0 | ,[Nn][Oo] | ,[Oo][Ff][Ff] | ,[Ff][Aa][Ll][Ss][Ee]) exit 0 ;;
    esac
    ;;
esac
set +f +e +u +x +v
# Python's own libraries come from the system, not from the job; the guard puts these back (guard/__main__.py).
case ${LD_LIBRARY_PATH+x} in x)
    export EESSI_ARCH_GUARD_LD_LIBRARY_PATH="$LD_LIBRARY_PATH"
    unset LD_LIBRARY_PATH
    ;;
esac
case ${LD_PRELOAD+x} in x)
    export EESSI_ARCH_GUARD_LD_PRELOAD="$LD_PRELOAD"
    unset LD_PRELOAD
    ;;
esac
family=
for loader in /lib64/ld-linux-x86-64.so.[2] /lib/ld-linux-aarch64.so.[1] /lib/ld-linux-riscv64-lp64d.so.[1]; do
    case $loader in
    *\[*) ;;
    *x86-64*) family=x86_64 ;;
    *aarch64*) family=aarch64 ;;
    *) family=riscv64 ;;
    esac
done
for python in @PYTHON@ /usr/bin/python3.1[4] /usr/bin/python3.1[3] /usr/bin/python3.1[2] /usr/bin/python3.1[1] \
    /usr/bin/python3.1[0] /usr/bin/python3.[9] /cvmfs/software.eessi.io/versions/202[0-9].[01][0-9]/compat/linux/$family/usr/bin/python[3]; do
    case $python in *\[*) continue ;; esac
    # No exec: should this Python die (a library for another CPU, no memory), the task must not.
    "$python" -I -S -c '@BOOT@' "$0" "$@"
    status=$?
    case $status in
    126 | 127) continue ;;
    132 | 134 | 135 | 136 | 137 | 139) break ;;
    esac
    exit $status
done
unset -f echo
case "$*" in
*--shell*) echo "eessi-arch-guard: skipped, no Python from 3.9 on could be run (last tried: ${python-none})" >&2 ;;
*) case ${SLURM_LOCALID-0} in 0)
    echo "print eessi-arch-guard: skipped, no Python from 3.9 on could be run (last tried: ${python-none})" ;;
    esac ;;
esac
exit 0
