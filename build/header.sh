#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# eessi-arch-guard @VERSION@ @BUILD@: this sh header, then a zip archive that Python imports from (build/pyz.py).
# No use of PATH: the job's has tools for another CPU. What an exported function could shadow is freed of it first; the
# special builtins (unset, exec, exit, export, set, trap) a POSIX sh finds before any function.
unset -f test echo
set +f +e +u +x +v
program='' previous='' call=other
case "$*" in
*--chain*)
    call=chain
    for word in "$@"; do
        case $previous,$word in
        --chain,*) program=$word ;;
        *,--chain=*) program=${word#--chain=} ;;
        esac
        previous=$word
    done
    case $program in
    /*) test -f "$program" && test -r "$program" && test -x "$program" || program='' ;;
    *) program='' ;;
    esac
    ;;
'' | --shell* | --timeout* | --prolog-line-max* | --syslog*) call=guard ;;
esac
case $call,${EESSI_SOFTWARE_SUBDIR:+loaded}${EESSI_ARCH_GUARD_VERBOSE:+verbose},${EESSI_ARCH_GUARD-} in
guard,,* | guard,loaded,0 | guard,loaded,[Nn][Oo] | guard,loaded,[Oo][Ff][Ff] | guard,loaded,[Ff][Aa][Ll][Ss][Ee]) exit 0 ;;
# Without EESSI the site's own prolog is all there is to run, and as Slurm itself would.
chain,,*) test "$program" && exec "$program" ;;
esac
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
boot='@BOOT@'
# For EESSI's compatibility layer, which is the last that is tried: this machine's family.
family=none
test -e /lib64/ld-linux-x86-64.so.2 && family=x86_64
test -e /lib/ld-linux-aarch64.so.1 && family=aarch64
test -e /lib/ld-linux-riscv64-lp64d.so.1 && family=riscv64
# The guard tells the job itself what a signal stopped; this sh only has to last as long.
case $call in guard | chain) trap : HUP INT TERM ;; esac
why='no Python from 3.9 on was found'
for python in @PYTHON@ /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 \
    /usr/bin/python3.10 /usr/bin/python3.9 \
    /cvmfs/software.eessi.io/versions/2025.06/compat/linux/"$family"/usr/bin/python3 \
    /cvmfs/software.eessi.io/versions/2023.06/compat/linux/"$family"/usr/bin/python3; do
    test -f "$python" || continue
    test -x "$python" || continue
    # What is not a prolog's is what it is: its status, its death by a signal, its pid.
    case $call in other) exec "$python" -I -S -c "$boot" "$0" "$@" ;; esac
    # No exec: should this Python die (a library for another CPU, no memory), the task must not.
    "$python" -I -S -c "$boot" "$0" "$@"
    status=$?
    why="$python ended with status $status"
    case $call,$status in
    # Either this Python cannot be run, or it ran a chained program that ended so.
    *,126 | *,127) "$python" -I -S -c '' || continue ;;
    # SIGUSR1: the archive could not be read (build/boot.py); the site's own prolog has not run yet.
    chain,138) test "$program" && exec "$program" ;;
    esac
    case $call,$status in
    guard,0) exit 0 ;;
    guard,* | *,132 | *,134 | *,135 | *,136 | *,137 | *,138 | *,139) break ;;
    esac
    exit $status
done
case "$*,${SLURM_LOCALID-0}" in
*--shell*) echo "eessi-arch-guard: skipped, $why" >&2 ;;
*,0) echo "print eessi-arch-guard: skipped, $why" ;;
esac
exit 0
