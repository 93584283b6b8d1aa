#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# A node's own TaskProlog for eessi-arch-guard: copy it to a local folder and name it in slurm.conf. Local, because Slurm
# from 22.05 on kills every task whose TaskProlog is missing, and an unmounted /cvmfs must not do that. To run a prolog of
# the site's own first, add: --chain /path/to/it
guard=${EESSI_ARCH_GUARD_FILE:-/cvmfs/software.eessi.io/eessi-arch-guard/current/eessi-arch-guard.pyz}
case ${EESSI_SOFTWARE_SUBDIR:+loaded} in '') exit 0 ;; esac
# `timeout` for a mount that hangs already when the file is looked at; the guard keeps its own, shorter deadline.
# `sh FILE`, because the mount may be noexec. 7 means: there is nothing to run.
# shellcheck disable=SC2016  # for the inner sh
/usr/bin/timeout --foreground -k 5 660 /bin/sh -c '[ -r "$0" ] && [ -s "$0" ] || exit 7; exec /bin/sh "$0" "$@"' "$guard" "$@"
case $?,${SLURM_LOCALID:-0} in
7,0) echo "print eessi-arch-guard: skipped, $guard cannot be read on this node" ;;
esac
exit 0
