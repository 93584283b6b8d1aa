# SPDX-License-Identifier: GPL-2.0-or-later
"""The reader of relay_io's socket: datagrams -> records -> lines -> spool -> sinks, every record delivered
or counted."""
