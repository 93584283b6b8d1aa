# SPDX-License-Identifier: GPL-2.0-or-later
"""One module for each kind of destination. A sink takes a batch and gives a verdict; it knows no spool and no
cursor."""
