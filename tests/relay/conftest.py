# SPDX-License-Identifier: GPL-2.0-or-later
from collections.abc import Iterator

import pytest

from tests.relay.rig import Rig


@pytest.fixture
def rig() -> "Iterator[Rig]":
    """A folder for a node, nothing started."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def node(rig: Rig) -> Rig:
    """A node with daemon and scraper, and job 174 begun."""
    rig.start()
    assert rig.event("job_start") == 0
    return rig
