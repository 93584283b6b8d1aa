# SPDX-License-Identifier: GPL-2.0-or-later
"""The one door: arguments -> one of the mains, imported only when it is chosen.

Runs as the .pyz, as `python3 -I <this file>` from an unmodified checkout, and as `python3 -m guard`.
"""

import posix
import sys

if not __package__:
    import os

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

USAGE = """usage: eessi-arch-guard                   as Slurm's TaskProlog: directives on stdout
       eessi-arch-guard --chain PROGRAM   the same, after the site's own TaskProlog
       eessi-arch-guard --shell           sh code, for: eval "$(eessi-arch-guard --shell)"
       eessi-arch-guard --check [--json]  what the guard sees on this node and would do
       eessi-arch-guard --clean           in Epilog or TaskEpilog: removes this job's files
       eessi-arch-guard relay node | exec | event | check     the producing side, where Slurm has no relay_io
       eessi-arch-guard relay scrape | report                 the reading side
       eessi-arch-guard --version | --help
modifiers of the first three: --timeout SECONDS  --prolog-line-max BYTES  --syslog
"""


def main(arguments: "list[str]", environ: "dict[bytes, bytes]", file: str) -> int:
    """Runs what the arguments ask for and gives the exit status (design section 2).

    Takes: arguments - without the program's name; environ - as bytes; file - this program, for the restore helper.
    """
    first = arguments[0] if arguments else ""
    if first == "--restore":
        from guard.arch import helper

        return helper.main()
    if first == "--check":
        from guard.arch import check

        return check.main(arguments[1:], environ, file)
    if first == "--clean":
        from guard.arch import clean

        return clean.main(environ)
    if first == "relay":
        return _relay(arguments[1:], environ)
    if first in ("--version", "--help"):
        from guard import __version__

        print(f"eessi-arch-guard {__version__}" if first == "--version" else USAGE, end="\n" if first[2] == "v" else "")
        return 0
    from guard.arch import main as guard
    from guard.arch import options

    given = options.parse(arguments)
    given.is_cut = guard.hold_standard_fds()
    return guard.run(given, environ, file)


def _relay(arguments: "list[str]", environ: "dict[bytes, bytes]") -> int:
    word = arguments[0] if arguments else ""
    if word == "scrape":
        from guard.scraper import main as scraper

        return scraper.main(arguments[1:], environ)
    if word == "report":
        from guard.report import main as report

        return report.main(arguments[1:], environ)
    from guard.relay import main as relay

    return relay.main(arguments, environ)


# What the .pyz's header keeps from this interpreter's own start (build/header.sh), and gives back here.
_KEPT_BY_HEADER = (b"LD_LIBRARY_PATH", b"LD_PRELOAD")


def start() -> None:
    """Calls main with this process's own arguments and environment, and ends the process."""
    environ = posix.environ
    for name in _KEPT_BY_HEADER:
        value = environ.pop(b"EESSI_ARCH_GUARD_" + name, None)
        if value is not None:
            environ[name] = value
    file = sys.argv[0]
    if not file.startswith("/"):
        file = f"{posix.getcwd()}/{file}"
    status = main(sys.argv[1:], environ, file)
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        pass  # nobody reads, or fd 1 was closed from the start
    posix._exit(status)


if __name__ == "__main__":
    start()
