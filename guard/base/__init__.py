# SPDX-License-Identifier: GPL-2.0-or-later
"""Leaf rooms: they know nothing of arch, relay, scraper or report."""
