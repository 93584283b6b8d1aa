#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Publishes dist/eessi-arch-guard.pyz on CVMFS; docs/site-install.md, "Publish".
#
# Two ways in: a transaction on a publisher, or a tarball for EESSI's ingestion. A published version never changes;
# `current` is a link, switched last and by one rename. Of transactions: one that is open is never touched, one that was
# opened here is never left open, whatever happens short of SIGKILL.
#
# No .cvmfscatalog is written: a nested catalog is one more file that every node fetches before its first task, and pays
# off from about a thousand entries on; a version is two. EESSI's own .cvmfsdirtab covers /versions/*.
# Source: cvmfs ae7450e (2024-10, 2.12.0) cvmfs/server/*.sh, cvmfs/publish/cmd_*.cc, and what it did when it was built and
# run; EESSI filesystem-layer 492b5ab (2026-08) scripts/ingest-tarball.sh.
set -u
# What publish stores is served by a web server. Under umask 077 it stored objects that no client was given, and a later
# publish, which has them already, did not store them again.
umask 022
unset CDPATH GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
name='eessi-arch-guard.pyz'
stopped=0

usage() {
    cat <<'EOF'
usage: cvmfs-publish.sh transaction [options]   on a publisher or Stratum 0, with cvmfs_server
       cvmfs-publish.sh tarball [options]       a tarball for EESSI's ingestion, in dist/
       cvmfs-publish.sh verify [options]        reads back what is published, from wherever it is mounted
options:
  --repo REPOSITORY    default software.eessi.io
  --prefix FOLDER      in the repository; default eessi-arch-guard, and for a tarball (EESSI ingests nothing outside
                       of versions/) versions/2023.06/scripts/eessi-arch-guard
  --rollback VERSION   publishes no file: only points `current` at a version that is already there
  --sha256 HEX         takes dist/eessi-arch-guard.pyz for a fresh build when it has this hash, and builds nothing here
  --python PATH        the site's interpreter that it was built for (build/pyz.py --python)
  --dry-run            makes every check, says what would be done, and changes nothing
environment: CUSTOM_CVMFS_ROOT for /cvmfs, CVMFS_SPOOL_DIR for /var/spool/cvmfs/REPOSITORY
exit status: 0 done, or nothing to do; 64 a wrong call; 65 a check failed, nothing was changed; 66 published, but it
does not read back; 67 a transaction that was opened here is still open; 17 one was open before; 129, 130, 131, 141, 143
stopped by a signal; any other is cvmfs_server's own.
EOF
}

say() { printf '%s\n' "cvmfs-publish.sh: $*" >&2; }

# Signals only leave a note; here is where they count.
go_on() {
    [ "$stopped" -ne 0 ] || return 0
    say "stopped by a signal"
    exit "$stopped"
}

fail() { # STATUS SENTENCE
    status=$1
    shift
    say "$*"
    go_on
    exit "$status"
}

# Where `current` leads to.
current() { readlink "$base/current" || echo none; }

# --- cvmfs_server ---------------------------------------------------------------------------------------------------

# Runs it, shows what it said, gives its status. It does not see our signals: a transaction that is half opened or half
# published cannot be judged; go_on asks for them afterwards. stdin is empty: publish and abort ask questions.
server() {
    say "cvmfs_server $*"
    (
        trap '' HUP INT QUIT PIPE TERM
        exec cvmfs_server "$@"
    ) </dev/null >"$work/said" 2>&1
    status=$?
    sed 's/^/    /' "$work/said" >&2
    return "$status"
}


# What to do, from the command, its status and what it said. Only transaction has a status for each case.
advice() { # COMMAND STATUS
    case $1:$2:$(cat "$work/said") in
    *:127:*) echo "cvmfs_server was not found: run this on the publisher, as root or as the repository's owner" ;;
    *:126:*) echo "cvmfs_server cannot be run here: run this as root or as the repository's owner" ;;
    *:129:* | *:13?:* | *:14?:*) echo "cvmfs_server $1 was killed, or crashed: look at the disk and the kernel's log" ;;
    *"Permission "* | *"No write permission"*) echo "run this as root or as the owner of $repo" ;;
    *"hitelist"*"expired"*) echo "the whitelist of $repo has expired: have it signed again (cvmfs_server resign)" ;;
    *"cannot load private key"* | *"failed to load private key"* | *"cannot load certificate"*)
        echo "the keys of $repo cannot be read: look at /etc/cvmfs/keys"
        ;;
    *"failed to download whitelist"* | *"cannot load manifest"* | publish:*"Repository unavailable"*)
        echo "the web server of $repo does not answer: start it"
        ;;
    *"Another publish"* | *"Could not acquire lock"*) echo "another publish runs on $repo: wait for it" ;;
    *" hook failed"*) echo "a hook of the site said no: see its message above and /etc/cvmfs/cvmfs_server_hooks.sh" ;;
    transaction:17:*) echo "a transaction is open on $repo: wait until its owner has published or aborted it" ;;
    transaction:16:*) echo "the gateway has a lease on $prefix for somebody else: try again when it is released" ;;
    transaction:2:*) echo "the parent of $prefix is not in $repo: create and publish it first, or change --prefix" ;;
    transaction:20:*) echo "the parent of $prefix is a file in $repo: change --prefix" ;;
    transaction:22:*) echo "$repo is of another version of cvmfs, or misconfigured: run cvmfs_server check $repo" ;;
    transaction:5:*) echo "$repo could not be opened: look at the disk and the gateway, run cvmfs_server check $repo" ;;
    *"Autofs"*) echo "autofs manages /cvmfs here: switch it off on a publisher" ;;
    transaction:1:*) echo "$repo could not be opened: is it in cvmfs_server list, and may this user write to it?" ;;
    transaction:*) echo "the transaction was refused for the reason above" ;;
    *"not in a transaction"*) echo "somebody has ended the transaction: agree with them, then run this again" ;;
    publish:*"Open writable"*) echo "a program writes in $mount: end it (lsof +f -- $mount), run this again" ;;
    publish:*"open read-only"*) echo "a program reads in $mount: end it (lsof +f -- $mount), run this again" ;;
    *"Current working directory"*) echo "a shell stands in $mount: leave it, then run this again" ;;
    publish:*) echo "it failed for the reason above: put it right, then run this again" ;;
    abort:5:*) echo "the mount is broken; where it cannot be read, cvmfs_suid_helper rdonly_umount $repo first" ;;
    abort:*) echo "it failed for the reason above" ;;
    esac
}

# What tells one transaction from the next: its flag is a file that nobody touches while it is open.
identity() { stat -c '%d %i %z' "$lock" 2>/dev/null || echo unseen; }
is_ours() { [ -n "$ours" ] && [ "$ours" = "$(identity)" ]; }

open_transaction() {
    server transaction "$repo/$prefix"
    status=$?
    # With this hook failing the transaction is open, and it is ours. With any other failure an open one is not, or
    # nothing tells whose it is: then it is left alone.
    if [ "$status" -eq 0 ] || grep -q '^post transaction hook failed' "$work/said"; then
        ours=$(identity)
    fi
    if [ "$status" -ne 0 ] && [ -z "$ours" ] && [ "$status" -ne 17 ] && [ -e "$lock" ]; then
        say "a transaction is open on $repo now, and nothing tells whether it is ours: if it is nobody's, close it by" \
            "hand (cvmfs_server abort $repo)"
    fi
    [ "$status" -eq 0 ] || fail "$status" "cvmfs_server transaction ended with $status: $(advice transaction "$status")"
    [ "$ours" != unseen ] || fail 65 "the transaction is open but $lock is not there: set CVMFS_SPOOL_DIR to the" \
        "repository's (see /etc/cvmfs/repositories.d/$repo/server.conf)"
    go_on
}

publish_transaction() { # TEXT
    server publish -m "$1" "$repo"
    status=$?
    if [ "$status" -ne 0 ] && ! is_ours && [ "$(current)" = "$version" ]; then
        fail "$status" "cvmfs_server publish ended with $status, but $version is published: put right what it says above"
    fi
    [ "$status" -eq 0 ] || fail "$status" "cvmfs_server publish ended with $status: $(advice publish "$status")"
    ! is_ours || fail 1 "cvmfs_server publish ended with 0, but its transaction is still open"
    ours=
}

# The one way out. Aborts a transaction that was opened here, and only that: not one that somebody opened since.
finish() { # STATUS
    status=$1
    trap '' HUP INT QUIT PIPE TERM
    trap - EXIT
    if is_ours; then
        code=$status
        server abort -f "$repo"
        abort=$?
        status=$code
        if [ "$abort" -ne 0 ] && is_ours; then
            say "THE TRANSACTION ON $repo IS STILL OPEN, cvmfs_server abort ended with $abort: $(advice abort "$abort");" \
                "put it right, then close it by hand: cvmfs_server abort -f $repo"
            status=67
        elif [ "$(current)" != "$was" ]; then
            # Publish signs the new revision before its last steps; no abort takes that back.
            say "the transaction is closed, but its revision is published: $base/current points to $(current)"
        else
            say "the transaction was aborted: $repo is as it was before"
        fi
    fi
    rm -rf "$work"
    exit "$status"
}

# --- checks ---------------------------------------------------------------------------------------------------------

is_version() { case $1 in '' | .* | -* | current | *[!A-Za-z0-9._-]*) return 1 ;; esac; }

# The version that a .pyz names when it runs, started as a node would: nothing of this shell's environment.
version_of() { # FILE
    said=$(cd / && env -i /bin/sh "$1" --version </dev/null 2>&1) || return
    is_version "${said#eessi-arch-guard }" && [ "$said" != "${said#eessi-arch-guard }" ] &&
        said=${said#eessi-arch-guard }
}

# A task without EESSI is most tasks: it must be silence and 0.
is_silent_without_eessi() { # FILE
    [ -z "$(cd / && env -i SLURM_JOB_ID=1 /bin/sh "$1" </dev/null 2>&1 || echo failed)" ]
}

# That $file may be published: it runs, and is what the clean tag of its version gives. Sets version.
check_file() {
    [ -s "$file" ] || fail 65 "$file is not there: run make pyz"
    version_of "$file" || fail 65 "$file does not run here: $said"
    version=$said
    is_silent_without_eessi "$file" || fail 65 "$file is not silent for a task without EESSI: do not publish it"
    changed=$(git -C "$root" status --porcelain --untracked-files=no) ||
        fail 65 "$root is no git checkout: publish from the checkout that the file was built in"
    [ -z "$changed" ] || fail 65 "$root has changes that are not committed: commit them, tag and build again"
    git -C "$root" tag --points-at HEAD | grep -qxF "v$version" ||
        fail 65 "$root is not at v$version: git checkout v$version and build again, or git tag v$version"
    if [ -n "$sha256" ]; then
        [ "$(sha256sum <"$file")" = "$sha256  -" ] || fail 65 "$file has not the hash $sha256: it is another build"
        return
    fi
    [ -x "$root/.venv/bin/python" ] || fail 65 "there is no $root/.venv to build with: run make pyz, or give --sha256"
    git -c advice.detachedHead=false clone -q --branch "v$version" "$root" "$work/fresh" ||
        fail 65 "v$version cannot be checked out for a fresh build"
    "$root/.venv/bin/python" "$work/fresh/build/pyz.py" "$work/fresh.pyz" ${python:+--python "$python"} \
        >"$work/said" 2>&1 || fail 65 "the fresh build of v$version failed: $(tail -n 1 "$work/said")"
    cmp -s "$file" "$work/fresh.pyz" ||
        fail 65 "$file is not what a fresh build of v$version gives on this machine: run make pyz again"
}

# That a version in the folder $1 is whole: there, for all to read, running, and the version it is filed under. What else
# is in its folder does not count: where .cvmfsdirtab covers it, publish puts a .cvmfscatalog there.
is_whole() { # FOLDER VERSION
    [ -f "$1/$2/$name" ] && [ -z "$(find "$1/$2" "$1/$2/$name" -prune ! -perm -005)" ] &&
        version_of "$1/$2/$name" && [ "$said" = "$2" ]
}

check_rollback() {
    is_whole "$base" "$version" ||
        fail 65 "$base/$version is not a whole version here; there are:$(versions "$base")"
}

# The versions in the folder $1, for a sentence.
versions() { # FOLDER
    found=
    for folder in "$1"/*/; do
        is_version "$(basename "$folder")" && found="$found $(basename "$folder")"
    done
    echo "${found:- none}"
}

# Reads back what is published: `current` leads to a whole version. With a version and a file, to those.
check_published() { # [VERSION [FILE]]
    target=$(readlink "$base/current") || fail 66 "$base/current is not there or no link"
    [ "$target" = "${1-$target}" ] || fail 66 "$base/current points to $target, not to $1: $later"
    is_whole "$base" "$target" || fail 66 "$base/$target is not whole or does not run ($said): roll back with" \
        "cvmfs-publish.sh transaction --rollback VERSION; there are:$(versions "$base")"
    is_silent_without_eessi "$base/current/$name" || fail 66 "$base/$target is not silent for a task without EESSI"
    [ $# -lt 2 ] || cmp -s "$2" "$base/current/$name" || fail 66 "$base/$target is not the file that was published"
    say "$base/current/$name is version $target, sha256 $(sha256sum <"$base/current/$name" | cut -d ' ' -f 1)"
}

# --- the ways in ----------------------------------------------------------------------------------------------------

# In one step, so that there is no moment without a `current`: rename(2) replaces the old link.
switch_current() { # FOLDER VERSION
    ln -s "$2" "$1/.current.$$" && mv -T "$1/.current.$$" "$1/current"
}

copy_version() { # FOLDER
    mkdir -p "$1/$version" && cp "$file" "$1/$version/$name" && chmod a+rX "$1" "$1/$version" &&
        chmod a+rx "$1/$version/$name" && cmp -s "$file" "$1/$version/$name"
}

# That the version may be made current. Sets was, what is current, and copies, whether it is still to be copied.
look() {
    was=$(current)
    copies=no
    if [ -n "$rollback" ]; then
        check_rollback
    elif [ ! -e "$base/$version" ]; then
        copies=yes
    elif ! cmp -s "$file" "$base/$version/$name"; then
        fail 65 "$base/$version is published with another content: raise the version, a published one never changes"
    fi
}

by_transaction() {
    [ -d "$mount" ] || fail 65 "$mount is not mounted here: run this on the publisher"
    command -v cvmfs_server >/dev/null || fail 65 "cvmfs_server was not found: run this on the publisher"
    [ ! -e "$lock" ] || fail 17 "a transaction is open on $repo ($lock): wait until its owner has ended it"
    look
    if [ "$copies$was" = "no$version" ]; then
        say "nothing to do, $version is published and current"
        check_published "$version"
        return
    fi
    if [ "$dry_run" = yes ]; then
        say "would open a transaction on $repo/$prefix, copy $version ($copies), switch current from $was, publish"
        return
    fi
    open_transaction
    # Once more: where a publish was cut short, the mount is behind until the next transaction brings it up to date.
    look
    [ "$copies" = no ] || copy_version "$base" ||
        fail 65 "$file could not be copied to $base/$version: look at the disk of $mount and who may write to it"
    go_on
    switch_current "$base" "$version" ||
        fail 65 "$base/current could not be switched: is it something else than a link?"
    # As the repository's owner, who else could not publish the next version into a folder of root's.
    [ "$(id -u)" -ne 0 ] || chown -hR --reference="$mount" "$base/$version" "$base/current" ||
        fail 65 "the owner of $base/$version could not be set"
    [ "$(id -u)" -ne 0 ] || chown --reference="$mount" "$base" || fail 65 "the owner of $base could not be set"
    go_on
    # Only these characters: publish puts the text into a sh -c without quotes.
    publish_transaction "eessi-arch-guard:${rollback:+rollback:}$version"
    if [ -n "$rollback" ]; then check_published "$version"; else check_published "$version" "$file"; fi
    [ "$stopped" -eq 0 ] || say "the signal came too late: $version is published"
}

# versions/<EESSI version>/<type>/... as a tarball whose name and first folders ingest-tarball.sh understands; in
# dev.eessi.io below a project. No entries for folders that are there already: their owner and mode stay.
by_tarball() {
    project=${prefix%%versions/*}
    project=${project%/}
    inside=${prefix#"$project"}
    inside=${inside#/}
    inside=${inside#versions/}
    eessi=${inside%%/*}
    type=$(echo "$inside" | cut -s -d / -f 2)
    case $type:$inside in
    init:$eessi/init/?* | scripts:$eessi/scripts/?*) ;;
    *) fail 64 "EESSI ingests versions/<EESSI version>/scripts/... or .../init/..., not $prefix: change --prefix" ;;
    esac
    echo "$eessi" | grep -qxE '20[0-9]{2}\.(0[0-9]|1[0-2])|20[0-9]{6}' ||
        fail 64 "$eessi is no version of EESSI (YYYY.MM or YYYYMMDD): change --prefix"
    case $repo:$project in
    dev.eessi.io: | dev.eessi.io:*[!A-Za-z0-9_]*)
        fail 64 "dev.eessi.io wants --prefix PROJECT/versions/..., PROJECT of letters, digits and _"
        ;;
    dev.eessi.io:* | *:) ;;
    *) fail 64 "only dev.eessi.io has projects: --prefix begins with versions/" ;;
    esac
    tarball=eessi-$eessi-$type-eessi-arch-guard-${rollback:+rollback-}$version${project:+-$project}-$(date +%s).tar.gz
    tarball=$root/dist/$tarball
    if [ "$dry_run" = yes ]; then
        say "would make $tarball with $inside/current -> $version"
        return
    fi
    mkdir -p "$work/stage/$inside" "$root/dist" || exit
    [ -n "$rollback" ] || copy_version "$work/stage/$inside" || fail 65 "$file could not be copied to $work"
    switch_current "$work/stage/$inside" "$version" || exit
    go_on
    # `current` last. One date and owner: the same version gives the same content.
    (
        cd "$work/stage" && set -- "$inside/current"
        [ -n "$rollback" ] || set -- "$inside/$version" "$@"
        tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime='1980-01-01 UTC' \
            -cf "$work/made.tar" "$@"
    ) || fail 65 "the tarball could not be made: look at the disk of $work"
    gzip -n "$work/made.tar" || fail 65 "the tarball could not be compressed: look at the disk of $work"
    mkdir "$work/back"
    tar -xzf "$work/made.tar.gz" -C "$work/back" || fail 66 "the tarball cannot be unpacked"
    if [ -n "$rollback" ]; then
        [ "$(readlink "$work/back/$inside/current")" = "$version" ] || fail 66 "the tarball has no current -> $version"
    else
        (base=$work/back/$inside && check_published "$version" "$file") || exit
    fi
    mv "$work/made.tar.gz" "$tarball" || exit
    say "upload it to EESSI's staging; once it is ingested: cvmfs-publish.sh verify --repo $repo --prefix $prefix"
    echo "$tarball"
}

# --- the call -------------------------------------------------------------------------------------------------------

root=$(cd -P "$(dirname "$0")" && pwd) || exit
file=$root/dist/$name
way=${1-}
repo=software.eessi.io prefix='' rollback='' sha256='' python='' dry_run=no
case $way in
transaction | tarball | verify) shift ;;
--help | -h)
    usage
    exit 0
    ;;
*)
    usage >&2
    exit 64
    ;;
esac
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run)
        dry_run=yes
        shift
        continue
        ;;
    --repo | --prefix | --rollback | --sha256 | --python) [ -n "${2-}" ] || fail 64 "$1 needs a value" ;;
    *) fail 64 "unknown option $1; see cvmfs-publish.sh --help" ;;
    esac
    case $1 in
    --repo) repo=$2 ;;
    --prefix) prefix=${2%/} ;;
    --rollback) rollback=$2 ;;
    --sha256) sha256=$2 ;;
    --python) python=$2 ;;
    esac
    shift 2
done
default='eessi-arch-guard'
[ "$way" != tarball ] || default="versions/2023.06/scripts/$default"
prefix=${prefix:-$default}
case $repo in .* | -* | *[!A-Za-z0-9.-]*) fail 64 "$repo is no name of a repository" ;; esac
case /$prefix/ in
*//* | */./* | */../* | */-* | *[!A-Za-z0-9._/-]*) fail 64 "--prefix is a plain relative path, not $prefix" ;;
esac
[ -z "$rollback" ] || is_version "$rollback" || fail 64 "$rollback is no version"
mount=${CUSTOM_CVMFS_ROOT:-/cvmfs}/$repo
base=$mount/$prefix
lock=${CVMFS_SPOOL_DIR:-/var/spool/cvmfs/$repo}/in_transaction.lock
later="on a gateway it takes minutes until this is seen here; then run cvmfs-publish.sh verify"

# Nothing of ours may stand in the repository while it is published.
cd / || exit
work=$(mktemp -d) || exit
ours='' said=''
trap 'finish $?' EXIT
trap 'stopped=129' HUP
trap 'stopped=130' INT
trap 'stopped=131' QUIT
trap 'stopped=141' PIPE
trap 'stopped=143' TERM

if [ "$way" = verify ]; then
    check_published
    exit
fi
if [ -n "$rollback" ]; then
    version=$rollback
    check_rollback
else
    check_file
fi
go_on
"by_$way"
