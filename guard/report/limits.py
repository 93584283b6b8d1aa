# SPDX-License-Identifier: GPL-2.0-or-later
"""Every number of the report, with its unit. Pure; imports nothing."""

# How many rows a list of the worst has.
WORST_COUNT = 10
# How many rows of any other list a page or table shows; JSON has them all.
SHOWN_COUNT = 15
# A line of input, in bytes: a record of the largest max_log_kbytes that one datagram carries, joined.
LINE_MAX_BYTES = 16 << 20
# What is decompressed at a time, in bytes.
PIECE_BYTES = 1 << 20
