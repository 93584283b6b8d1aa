# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's producing side: from a task's bytes to relay_io/uds_json records on a socket."""
