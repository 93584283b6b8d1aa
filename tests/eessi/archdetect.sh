#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A miniature of EESSI's detector: the same calls, overrides, output and exit codes, and nothing but those are taken.
# It writes a line per run into detector.log beside the tree, which is how tests count decisions; the runs that Lmod makes
# while the guard reloads are marked. In a subshell: a file size limit of the job kills only that.
set -f
here=$(dirname "$(readlink -f "$0")")
result=best
while getopts a option; do
    case $option in
    a) result=all ;;
    *) exit 1 ;;
    esac
done
shift $((OPTIND - 1))
(echo "$$ $result $*${LMOD_SHORT_TIME:+ by Lmod}" >>"$here/../../../detector.log")

cpupath() {
    if [ -n "$EESSI_SOFTWARE_SUBDIR_OVERRIDE" ]; then
        echo "$EESSI_SOFTWARE_SUBDIR_OVERRIDE"
        exit
    fi
    local machine flags matches target wanted flag
    machine=${EESSI_MACHINE_TYPE:-$(uname -m)}
    flags=" $(grep -i '^flags' "${EESSI_PROC_CPUINFO:-/proc/cpuinfo}" | tail -n 1 | sed 's/^flags[^:]*: *//i') "
    if [ "$flags" = "  " ]; then
        echo "no flags" >&2
        exit 1
    fi
    matches=$machine/generic
    while read -r target wanted; do
        for flag in $wanted; do
            [[ $flags == *" $flag "* ]] || continue 2
        done
        matches=$target:$matches
    done < <(grep "^$machine/" "$here/cpu_targets")
    if [ $result = all ]; then echo "$matches"; else echo "${matches%%:*}"; fi
}

accelpath() {
    if [ -n "$EESSI_ACCELERATOR_TARGET_OVERRIDE" ]; then
        [[ $EESSI_ACCELERATOR_TARGET_OVERRIDE =~ ^accel/(nvidia/cc[0-9]+|amd/gfx[0-9a-f]+)$ ]] || exit 1
        echo "$EESSI_ACCELERATOR_TARGET_OVERRIDE"
        exit
    fi
    command -v nvidia-smi >/dev/null || exit 2
    # The real one sends nvidia-smi's stderr to its own stdout too.
    local answer
    answer=$(nvidia-smi --query-gpu=gpu_name,count,driver_version,compute_cap --format=csv,noheader) 2>&1 || exit 3
    answer=${answer%%$'\n'*}
    answer=${answer##*, }
    echo "accel/nvidia/cc${answer//./}"
}

case "$1" in
cpupath | accelpath) "$1" ;;
*) exit 1 ;;
esac
