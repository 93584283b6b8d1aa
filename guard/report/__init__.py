# SPDX-License-Identifier: GPL-2.0-or-later
"""What the guard did across the fleet, counted from the records that the scraper wrote."""
