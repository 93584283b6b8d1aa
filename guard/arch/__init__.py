# SPDX-License-Identifier: GPL-2.0-or-later
"""The arch guard: environ -> request -> cache -> detect -> walk -> decide -> restore -> delta -> emit."""
