# SPDX-License-Identifier: GPL-2.0-or-later
"""Producers that keep to the seed, a real scraper, files: every record arrives, or somebody has counted it.

RELAY_RECORDS=1000000 makes the first test the long one.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from guard.scraper import spool
from guard.scraper.limits import RECEIVE_SLOTS_COUNT
from tests.scraper import records
from tests.scraper.running import Scraper, produced, until

RECORDS = int(os.environ.get("RELAY_RECORDS", "50000"))
STREAMS = 3


def stream(number: int, count: int) -> "Iterator[tuple[int, bytes]]":
    """Numbered records of one step; every seventh goes on in the next."""
    template = records.raw(records.log("BODY", step_id=str(number)))
    for index in range(count):
        is_partial = index % 7 == 3 and index < count - 1
        body = b'"%d;"' % index if is_partial else b'"%d;\\n"' % index
        raw = template.replace(b'"BODY"', body)
        yield index, raw[:-1] + b',"partial":true}' if is_partial else raw


def arrived(scraper: Scraper) -> "dict[str, list[int]]":
    """The numbers in the files, by step, in the order of the files."""
    found: dict[str, list[int]] = {}
    for text in scraper.lines():
        numbers = [int(part) for part in text["body"].strip().split(";") if part.strip()]
        found.setdefault(text["slurm"]["step_id"], []).extend(numbers)
    return found


def ended(pids: "list[int]", results: "list[Path]") -> "dict[str, set[int]]":
    """Waits for the producers; gives what each has dropped."""
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    told = [json.loads(result.read_text()) for result in results]
    return {str(answer["stream"]): set(answer["dropped"]) for answer in told}


def stop_settled(scraper: Scraper) -> None:
    """Ends the scraper once its sink has got what is in the spool: the end itself allows only a try within a bound."""
    folder = str(scraper.spool)
    name = spool.prepare(folder)

    def is_read() -> bool:
        reader = spool.Reader(folder, spool.load_cursor(folder, name, "file")[0])
        piece = reader.read(1, 1 << 16)
        reader.close()
        return piece is None

    until(is_read)
    assert scraper.stop() == 0


def start(scraper: Scraper, count: int, pace_s: float = 0.0) -> "tuple[list[int], list[Path]]":
    results = [scraper.folder / f"result{number}" for number in range(STREAMS)]
    pids = [
        produced(scraper.socket, number, stream(number, count), results[number], pace_s) for number in range(STREAMS)
    ]
    return pids, results


def test_every_record_arrives_once_and_in_the_order_of_its_stream(scraper: Scraper) -> None:
    count = RECORDS // STREAMS
    scraper.start()
    dropped = ended(*start(scraper, count))
    assert not any(dropped.values())
    stop_settled(scraper)
    found = arrived(scraper)
    assert found == {str(number): list(range(count)) for number in range(STREAMS)}


def test_restarted_again_and_again_what_is_missing_is_what_the_producers_dropped(scraper: Scraper) -> None:
    scraper.start()
    pids, results = start(scraper, 4000, 0.001)
    for _ in range(4):
        time.sleep(0.7)
        assert scraper.stop() == 0
        time.sleep(0.1)
        scraper.start()
    dropped = ended(pids, results)
    stop_settled(scraper)
    found = arrived(scraper)
    for number in range(STREAMS):
        expected = [index for index in range(4000) if index not in dropped[str(number)]]
        assert found[str(number)] == expected


def test_killed_again_and_again_only_what_was_in_its_hands_is_missing_and_nothing_comes_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        held.bind(path)
        scraper = Scraper(tmp_path, held)
        scraper.start()
        pids, results = start(scraper, 4000, 0.001)
        kills = 5
        for _ in range(kills):
            time.sleep(0.7)
            scraper.stop(signal.SIGKILL)
            scraper.start()
        dropped = ended(pids, results)
        stop_settled(scraper)
    found = arrived(scraper)
    missing = 0
    for number in range(STREAMS):
        got = found[str(number)]
        assert got == sorted(set(got))
        missing += 4000 - len(got) - len(dropped[str(number)])
    # Each kill may cost one look at the queue, and the one open chain of each stream.
    assert 0 <= missing <= kills * (RECEIVE_SLOTS_COUNT + STREAMS)
