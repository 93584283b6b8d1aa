# SPDX-License-Identifier: GPL-2.0-or-later
"""eessi-arch-guard: re-run EESSI modules on the node they are used on, and relay what jobs say."""

__version__ = "0.1.0"
