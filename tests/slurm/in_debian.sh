#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The tests on another Debian's Slurm, Lmod, Python and gcc: tests/slurm/in_debian.sh RELEASE [pytest argument ...]
# As root, with debootstrap. The Debian is made once, as $DEBIANS/RELEASE (/srv), and kept; remove it by hand.
set -eu

release=${1:?usage: in_debian.sh RELEASE [pytest argument ...]}
shift
[ $# -gt 0 ] || set -- tests/slurm tests/spank
tests=$(cd "$(dirname "$0")/.." && pwd)
tree=${tests%/*}
debian=${DEBIANS:-/srv}/$release
packages=(slurm-wlm munge libslurm-dev lmod gcc make libc6-dev git strace valgrind python3-venv busybox dash)

# The mounts are this process's own and go with it, so that nobody removes /dev together with the folder.
[ "${IN_DEBIAN_PID-}" = "$$" ] || IN_DEBIAN_PID=$$ exec unshare --mount -- "$0" "$release" "$@"

[ -e "$debian/etc/debian_version" ] ||
    debootstrap --variant=minbase "$release" "$debian" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
mount --bind "$debian" "$debian"
for folder in /proc /sys /dev; do
    mount --rbind "$folder" "$debian$folder"
done
# A worktree's .git is a file that names a folder; both are where they are outside.
for folder in "$tree" "$(git -C "$tree" rev-parse --path-format=absolute --git-common-dir)"; do
    mkdir -p "$debian$folder"
    mount --bind "$folder" "$debian$folder"
done
cp /etc/resolv.conf /etc/hosts "$debian/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$debian/root/"
printf '#!/bin/sh\nexit 101\n' >"$debian/usr/sbin/policy-rc.d" # packages start no daemons
chmod 755 "$debian/usr/sbin/policy-rc.d"

# Not chroot: who joins a job's container, as its tasks do, is in the root of the mounts then.
cd "$debian"
pivot_root . mnt
cd "$tree"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive CI=true
hash -r
umount --lazy /mnt
if [ "$release" = bullseye ]; then
    # Its Lmod is 6.6, and EESSI needs 8: the next Debian's.
    echo "deb ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" >/etc/apt/sources.list.d/lmod.list
    printf 'Package: %s\nPin: release n=bookworm\nPin-Priority: %s\n\n' '*' 1 lmod 990 >/etc/apt/preferences.d/lmod
fi
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    # Valid-Until: a mirror may be a copy that is kept as it was.
    apt-get -o Acquire::Check-Valid-Until=false update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
git config --global --replace-all safe.directory '*'
# The registry may be one that only the outer machine's certificates tell of.
export EESSI_ARCH_GUARD_PYZ=/opt/eessi-arch-guard.pyz PIP_CERT=/root/ca-certificates.crt
make -s VENV=/opt/venv PYZ=$EESSI_ARCH_GUARD_PYZ pyz
slurmd -V
exec /opt/venv/bin/python -B -m pytest -p no:cacheprovider "$@"
