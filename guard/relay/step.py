# SPDX-License-Identifier: GPL-2.0-or-later
"""The frames of one step's taps -> its records. Pure; the clock is an argument."""

from guard.base.faults import PeerFault
from guard.relay import frames, lines, record
from guard.relay.frames import Frame
from guard.relay.limits import STREAMS_MOST_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# task_id_local, task_id_global, stream
Key = tuple[int, int, int]


class Step:
    """All open streams of one step on this node.

    Takes: slurm - the identity that step records carry, from the daemon's job table; max_log_bytes - the cap.
    held_bytes: what was taken and is in no record yet, in bytes as its records will have them.
    """

    def __init__(self, slurm: "Mapping[str, object]", max_log_bytes: int) -> None:
        self._slurm = slurm
        self._max_log_bytes = max_log_bytes
        self.held_bytes = 0
        # The stream, what its records share, whether its last bytes were unbuffered.
        self._streams: "dict[Key, tuple[lines.Stream, bytes, bool]]" = {}

    def start(self, time_ns: int) -> bytes:
        """The step_start record."""
        return record.event("step_start", time_ns, self._slurm)

    def end(self, time_ns: int) -> bytes:
        """The step_end record. It closes every chain: whatever is held must have been taken by close() before."""
        return record.event("step_end", time_ns, self._slurm)

    def data(self, frame: Frame) -> "list[bytes]":
        """The records that a DATA frame completes.

        Raises: PeerFault(bad-frame) - one stream too many for a step.
        """
        key = key_of(frame)
        found = self._streams.get(key)
        if found is None:
            if len(self._streams) >= STREAMS_MOST_COUNT:
                raise PeerFault("bad-frame", f"more than {STREAMS_MOST_COUNT} streams")
            slurm = {**self._slurm, "task_id_global": frame.task_global, "task_id_local": frame.task_local}
            found = (lines.Stream(self._max_log_bytes), record.log_place(slurm, frame.stream), frame.is_unbuffered)
            self._streams[key] = found
        elif found[2] != frame.is_unbuffered:
            self._streams[key] = found = (found[0], found[1], frame.is_unbuffered)
        before_bytes = found[0].held_bytes()
        pieces = found[0].feed(frame.payload, frame.is_unbuffered)
        self.held_bytes += found[0].held_bytes() - before_bytes
        return record.logs(pieces, frame.time_ns, found[1])

    def close(self, keys: "Iterable[Key]", time_ns: int) -> "list[bytes]":
        """The records of what these streams still held; they are over. Unknown keys are nothing."""
        records: "list[bytes]" = []
        for key in keys:
            found = self._streams.pop(key, None)
            if found:
                stream, place, is_unbuffered = found
                self.held_bytes -= stream.held_bytes()
                records += record.logs(stream.end(is_unbuffered), time_ns, place)
        return records


def key_of(frame: Frame) -> Key:
    """Which stream a DATA, END or LOST frame is about."""
    return frame.task_local, frame.task_global, frame.stream


def loss(frame: Frame) -> str:
    """The sentence for the log about a LOST frame."""
    if not frame.stream:
        return f"relay lost {frames.count_of(frame)} bytes that a worker held when it died"
    name = record.STREAM_NAMES[frame.stream]
    return f"relay lost {frames.count_of(frame)} bytes of task {frame.task_global} {name} before they were records"
