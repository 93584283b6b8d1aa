# SPDX-License-Identifier: GPL-2.0-or-later
"""Packages that are not in the .pyz, within reach of the relay's own commands."""

import sys


def make_reachable() -> None:
    """Adds this interpreter's site-packages to the path. The .pyz is started with -S, because the guard pays for every
    import of every task; scraper and report run once, and use orjson, urllib3 and others where they are installed."""
    if sys.flags.no_site:
        import site

        site.main()
