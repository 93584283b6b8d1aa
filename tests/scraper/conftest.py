# SPDX-License-Identifier: GPL-2.0-or-later
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scraper.running import Scraper


@pytest.fixture
def scraper(tmp_path: Path) -> Iterator[Scraper]:
    """A scraper that is not started yet; none of its processes outlives the test."""
    made = Scraper(tmp_path)
    yield made
    if made.process and made.process.poll() is None:
        made.stop(signal.SIGKILL)
