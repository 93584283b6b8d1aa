#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# A node's own TaskProlog for eessi-arch-guard: copy it to a local folder and name it in slurm.conf. Local, because Slurm
# from 22.05 on kills every task whose TaskProlog is missing, and an unmounted /cvmfs must not do that. Arguments are the
# guard's. A prolog of the site's own (--chain /path/to/it) runs also where the guard has nothing to do or is not there,
# and may fail the task as ever.
guard=${EESSI_ARCH_GUARD_FILE:-/cvmfs/software.eessi.io/eessi-arch-guard/current/eessi-arch-guard.pyz}
# A job's exported functions are not to stand in for these.
unset -f test echo
site='' previous=''
for word in "$@"; do
    case $previous,$word in
    --chain,*) site=$word ;;
    *,--chain=*) site=${word#--chain=} ;;
    esac
    previous=$word
done
case ${site:+site}${EESSI_SOFTWARE_SUBDIR:+loaded}${EESSI_ARCH_GUARD_VERBOSE:+verbose} in
'') exit 0 ;;
site)
    test -x "$site" && exec "$site"
    echo "print eessi-arch-guard: skipped, $site cannot be run on this node"
    exit 0
    ;;
esac
# `timeout` for a mount that hangs already when the file is looked at; the guard keeps its own, shorter deadline.
# `sh FILE`, because the mount may be noexec.
# shellcheck disable=SC2016  # for the inner sh
/usr/bin/timeout --foreground -k 5 660 /bin/sh -c '
unset -f test echo read
site=$1
shift
# Read, not only looked at: where CVMFS has lost its server, sizes and modes are there and the open fails with EIO.
test -s "$0" && { read -r first <"$0"; } 2>/dev/null && exec /bin/sh "$0" "$@"
case ${SLURM_LOCALID:-0} in 0) echo "print eessi-arch-guard: skipped, $0 cannot be read on this node" ;; esac
case $site in ?*)
    test -x "$site" && exec "$site"
    echo "print eessi-arch-guard: skipped, $site cannot be run on this node"
    ;;
esac' "$guard" "$site" "$@"
status=$?
# Only the site may fail a task; 124 and 137 are those of `timeout`, which has ended what hung.
case ${site:+site}$status in
site124 | site137) exit 0 ;;
site*) exit "$status" ;;
esac
exit 0
