# SPDX-License-Identifier: GPL-2.0-or-later
from hypothesis import given
from hypothesis import strategies as st

from guard.relay.limits import RING_ENTRY_BYTES
from guard.relay.ring import Ring

PERIOD_MS = 60_000
EACH = 100 + RING_ENTRY_BYTES


def of(count: int, size_bytes: int = 100) -> "list[bytes]":
    return [b"%0*d" % (size_bytes, number) for number in range(count)]


def test_the_oldest_are_dropped_and_counted_when_the_ring_is_full() -> None:
    ring = Ring(3 * EACH)
    ring.push(of(3))
    assert ring.dropped_count == 0
    ring.push([b"x" * 100])
    assert (list(ring.records), ring.dropped_count) == (of(3)[1:] + [b"x" * 100], 1)


def test_what_was_sent_makes_room() -> None:
    ring = Ring(3 * EACH)
    ring.push(of(3))
    ring.take(1)
    ring.push([b"x" * 100])
    assert ring.dropped_count == 0


def test_a_record_larger_than_the_ring_is_dropped_with_all_before_it() -> None:
    ring = Ring(3 * EACH)
    ring.push([*of(2), b"y" * 1000])
    assert (list(ring.records), ring.dropped_count) == ([], 3)
    ring.push(of(1))
    assert list(ring.records) == of(1)


@given(st.lists(st.one_of(st.integers(0, 400), st.none()), max_size=60))
def test_records_keep_their_order_and_none_is_lost_uncounted(steps: "list[int | None]") -> None:
    ring = Ring(2000)
    pushed_count, sent = 0, []
    for step in steps:
        if step is None:
            if ring.records:
                (record,) = ring.take(1)
                sent.append(int(record[:6]))
        else:
            ring.push([b"%06d" % pushed_count + b"." * step])
            pushed_count += 1
        assert sum(len(record) + RING_ENTRY_BYTES for record in ring.records) <= 2000
    waiting = [int(record[:6]) for record in ring.records]
    assert sent + waiting == sorted(sent + waiting)
    assert len(sent) + len(waiting) + ring.dropped_count == pushed_count


def test_the_first_drop_is_told_at_once_then_one_a_period_then_the_total() -> None:
    ring = Ring(EACH)
    ring.push(of(1))
    assert ring.reports(0) == []
    ring.push(of(1))
    assert ring.reports(5) == ["relay dropped 1 record in total, the relay is not draining fast enough"]
    assert ring.reports(6) == []
    ring.push(of(2))
    assert ring.next_report_ms() == 5 + PERIOD_MS
    assert ring.reports(5 + PERIOD_MS - 1) == []
    assert ring.reports(5 + PERIOD_MS) == ["relay dropped 3 records in total, the relay is not draining fast enough"]
    assert ring.next_report_ms() == float("inf")
    assert ring.reports(5 + 9 * PERIOD_MS) == []
    assert ring.reports(6 + 9 * PERIOD_MS, is_final=True) == [
        "relay dropped 3 records in total, the relay is not draining fast enough"
    ]


def test_nothing_is_told_at_the_end_when_nothing_was_dropped() -> None:
    ring = Ring(EACH)
    ring.push(of(1))
    assert ring.reports(0, is_final=True) == []


def test_oversize_records_are_told_with_the_seeds_words_and_count_in_the_total() -> None:
    ring = Ring(1 << 20)
    ring.push([b"z" * 30124, b"z" * 30123, b"a"])
    ring.drop_oversize()
    assert ring.reports(0) == ["relay dropped 1 record due to EMSGSIZE, the smallest being 30124 bytes"]
    ring.drop_oversize()
    assert ring.reports(PERIOD_MS) == ["relay dropped 2 records due to EMSGSIZE, the smallest being 30123 bytes"]
    assert (ring.dropped_count, list(ring.records)) == (2, [b"a"])
    ring.drop_rest()
    assert ring.reports(PERIOD_MS + 1, is_final=True) == [
        "relay dropped 2 records due to EMSGSIZE, the smallest being 30123 bytes",
        "relay dropped 1 record in total, the relay is not draining fast enough",
    ]
