#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# A node's own TaskProlog for eessi-arch-guard: copy it to a local folder and name it in slurm.conf. Local, because Slurm
# from 22.05 on kills every task whose TaskProlog is missing, and an unmounted /cvmfs must not do that.
guard=${EESSI_ARCH_GUARD_FILE:-/cvmfs/software.eessi.io/eessi-arch-guard/current/eessi-arch-guard.pyz}
# The path of the site's own TaskProlog, if it has one: it runs first, for every task, and may fail the task as ever.
site=
# A job's exported functions are not to stand in for these.
unset -f test echo
case ${site:+site}${EESSI_SOFTWARE_SUBDIR:+loaded}${EESSI_ARCH_GUARD_VERBOSE:+verbose} in
'') exit 0 ;;
site)
    test -x "$site" && exec "$site"
    echo "print eessi-arch-guard: skipped, $site cannot be run on this node"
    exit 0
    ;;
site*) set -- --chain "$site" "$@" ;;
esac
# `timeout` for a mount that hangs already when the file is looked at; the guard keeps its own, shorter deadline.
# `sh FILE`, because the mount may be noexec.
# shellcheck disable=SC2016  # for the inner sh
/usr/bin/timeout --foreground -k 5 660 /bin/sh -c '
unset -f test echo
test -r "$0" && test -s "$0" && exec /bin/sh "$0" "$@"
case ${SLURM_LOCALID:-0} in 0) echo "print eessi-arch-guard: skipped, $0 cannot be read on this node" ;; esac
case ${1-} in --chain)
    test -x "$2" && exec "$2"
    echo "print eessi-arch-guard: skipped, $2 cannot be run on this node"
    ;;
esac' "$guard" "$@"
status=$?
# Only the site may fail a task; 124 and 137 are those of `timeout`, which has ended what hung.
case ${site:+site}$status in
site124 | site137) exit 0 ;;
site*) exit "$status" ;;
esac
exit 0
