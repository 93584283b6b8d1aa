# SPDX-License-Identifier: GPL-2.0-or-later
"""Chains of partial records -> whole lines. Pure: the clock is an argument, bounds are checked at every push.

A chain belongs to one stream of one task of one step of one run of a job on one node. It is ended by its unmarked
record (`line`), by the step's or job's end, by a new run, by age, or by a bound; whatever the reason, what had come is
given, with the reason in the line. Source: seed relay_io "How output becomes records".
"""

from guard.scraper import line
from guard.scraper.limits import (
    CHAIN_AGE_S,
    CHAIN_MAX_BYTES,
    CHAINS_MAX_BYTES,
    CHAINS_MAX_COUNT,
    LOSSY_STEPS_MAX_COUNT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Key = tuple[str, str, int, str, str, int, str]
    Job = tuple[str, str, int]

# Why a chain ended.
ENDS = ("line", "step-end", "job-end", "new-run", "age", "chain-full", "chains-full")


class Chain:
    """Pieces of one line. raw: the first piece as it came; body: of all pieces, UTF-8 (text would cost up to four times
    as much); touched_s: monotonic; pid: of the sender; unbuffered: cut at any place and joined into lines."""

    __slots__ = (
        "body",
        "doubtful",
        "first_received_ns",
        "last_received_ns",
        "last_time_ns",
        "pid",
        "pieces",
        "raw",
        "touched_s",
        "unbuffered",
    )

    def __init__(self, raw: bytes, received_ns: int, pid: int, unbuffered: bool) -> None:
        self.raw = raw
        self.body = bytearray()
        self.pieces = 0
        self.first_received_ns = received_ns
        self.last_received_ns = received_ns
        self.last_time_ns = 0
        self.touched_s = 0.0
        self.pid = pid
        self.doubtful = False
        self.unbuffered = unbuffered

    def size_bytes(self) -> int:
        """What the chain holds."""
        return len(self.raw) + len(self.body)


class Rejoin:
    """All open chains of one node's socket.

    counts: how many lines were joined, by reason of their end; `doubtful` ones; `pieces` that were taken.
    """

    def __init__(
        self,
        join_unbuffered: bool = False,
        age_s: float = CHAIN_AGE_S,
        chain_max_bytes: int = CHAIN_MAX_BYTES,
        chains_max_bytes: int = CHAINS_MAX_BYTES,
        chains_max_count: int = CHAINS_MAX_COUNT,
    ) -> None:
        self.counts = dict.fromkeys((*ENDS, "doubtful", "pieces"), 0)
        self.size_bytes = 0
        self._join_unbuffered = join_unbuffered
        self._age_s = age_s
        self._chain_max_bytes = chain_max_bytes
        self._chains_max_bytes = chains_max_bytes
        self._chains_max_count = chains_max_count
        # In the order of their last piece, so that the quiet ones are at the front.
        self._chains: dict[Key, Chain] = {}
        self._jobs: dict[Job, dict[Key, None]] = {}
        self._lossy: dict[tuple[int, str], None] = {}

    def count(self) -> int:
        """How many chains are open."""
        return len(self._chains)

    def push(
        self, fields: "dict[str, Any]", raw: bytes, received_ns: int, pid: int, now_s: float, lines: "list[bytes]"
    ) -> None:
        """Takes one record and appends to lines what is whole now, in the order in which it may be read.

        Takes: fields, raw - as decode.record has taken and given them; received_ns - since the epoch; pid - of the
        sender; now_s - monotonic.
        """
        if fields["type"] == "log":
            is_unbuffered = "unbuffered" in fields
            is_piece = "partial" in fields or (is_unbuffered and self._join_unbuffered)
            if is_piece or self._chains:
                key = _key(fields)
                chain = self._chains.get(key)
                if chain is not None and chain.unbuffered is not is_unbuffered:
                    # A step is the one or the other, so this is another step under the same name.
                    self._end(key, "new-run", lines)
                    chain = None
                if is_piece or chain is not None:
                    self._add(key, fields, raw, received_ns, pid, now_s, lines)
                    # A bound may have ended it already.
                    if not is_piece and key in self._chains:
                        self._end(key, "line", lines)
                    return
            if self._lossy and (fields["slurm"]["job_id"], fields["slurm"]["step_id"]) in self._lossy:
                # It may be the end of a line whose first pieces are lost.
                self.counts["doubtful"] += 1
                lines.append(line.stamped(raw, received_ns, True))
                return
        else:
            self._end_of(fields, lines)
        lines.append(line.stamped(raw, received_ns))

    def expire(self, now_s: float, lines: "list[bytes]") -> None:
        """Ends the chains that got nothing for the age limit."""
        while self._chains:
            key = next(iter(self._chains))
            if now_s - self._chains[key].touched_s < self._age_s:
                return
            self._end(key, "age", lines)

    def note_loss(self, job_id: int, step_id: str) -> None:
        """Marks what is open of a step and what is still to come of it: its producer has said that it lost records."""
        self._lossy.pop((job_id, step_id), None)
        self._lossy[job_id, step_id] = None
        if len(self._lossy) > LOSSY_STEPS_MAX_COUNT:
            del self._lossy[next(iter(self._lossy))]
        for key, chain in self._chains.items():
            if (key[2], key[4]) == (job_id, step_id):
                chain.doubtful = True

    def lossy(self) -> "tuple[tuple[int, str], ...]":
        """The steps that note_loss has named and that have not ended."""
        return tuple(self._lossy)

    def note_broken(self, pid: int) -> None:
        """Marks what is open from one sender: one of its datagrams could not be read."""
        for chain in self._chains.values():
            if chain.pid == pid:
                chain.doubtful = True

    def state(self) -> "Iterable[dict[str, Any]]":
        """Every open chain as a JSON object, oldest first, for restore in the next process."""
        for chain in self._chains.values():
            yield {
                "raw": chain.raw.decode("utf-8"),
                "body": chain.body.decode("utf-8"),
                "pieces": chain.pieces,
                "received": [chain.first_received_ns, chain.last_received_ns],
                "time_last": chain.last_time_ns,
                "pid": chain.pid,
                "doubtful": chain.doubtful,
            }

    def restore(self, state: "Iterable[dict[str, Any]]", now_s: float) -> None:
        """Takes up the chains that the process before this one had open.

        Raises: PeerFault, KeyError, TypeError, ValueError - not a state of ours.
        """
        from guard.scraper import decode

        for saved in state:
            raw = saved["raw"].encode("utf-8")
            fields = decode.record(raw)
            chain = Chain(raw, int(saved["received"][0]), int(saved["pid"]), "unbuffered" in fields)
            chain.last_received_ns = int(saved["received"][1])
            chain.last_time_ns = int(saved["time_last"])
            chain.doubtful = bool(saved["doubtful"])
            chain.touched_s = now_s
            chain.body += saved["body"].encode("utf-8")
            chain.pieces = int(saved["pieces"])
            self._open(_key(fields), chain)

    def _add(
        self,
        key: "Key",
        fields: "dict[str, Any]",
        raw: bytes,
        received_ns: int,
        pid: int,
        now_s: float,
        lines: "list[bytes]",
    ) -> None:
        body = fields["body"].encode("utf-8")
        unbuffered = "unbuffered" in fields
        chain = self._chains.get(key)
        if chain is not None and len(chain.body) + len(body) > self._chain_max_bytes:
            self._end(key, "chain-full", lines)
            chain = None
        if chain is None:
            chain = Chain(raw, received_ns, pid, unbuffered)
            chain.doubtful = (key[2], key[4]) in self._lossy
            self._open(key, chain)
        else:
            del self._chains[key]
            self._chains[key] = chain
        chain.body += body
        chain.pieces += 1
        self.counts["pieces"] += 1
        chain.last_received_ns = received_ns
        chain.last_time_ns = fields["time"]
        chain.touched_s = now_s
        self.size_bytes += len(body)
        if unbuffered and b"\n" in body:
            self._cut(key, chain, raw, lines)
        while self._chains and (self.size_bytes > self._chains_max_bytes or len(self._chains) > self._chains_max_count):
            self._end(next(iter(self._chains)), "chains-full", lines)

    def _cut(self, key: "Key", chain: Chain, raw: bytes, lines: "list[bytes]") -> None:
        """Gives the whole lines of an unbuffered chain and keeps what follows the last newline."""
        whole, _, rest = self._close(key).body.rpartition(b"\n")
        for text in whole.split(b"\n"):
            self._give(chain, text + b"\n", "line", lines)
            # What is left began in the chunk that has just come.
            chain.raw = raw
            chain.first_received_ns = chain.last_received_ns
            chain.pieces = 1
        if rest:
            chain.body = rest
            self._open(key, chain)

    def _end_of(self, fields: "dict[str, Any]", lines: "list[bytes]") -> None:
        slurm = fields["slurm"]
        kind = fields["type"]
        job = (slurm["cluster"], slurm["node"], slurm["job_id"])
        step_id = slurm.get("step_id")
        if kind == "step_end":
            self._lossy.pop((slurm["job_id"], step_id), None)
        for key in tuple(self._jobs.get(job, ())):
            # Without a sluid on both sides the job's id must do.
            is_other_run = bool(key[3]) and "sluid" in slurm and key[3] != slurm["sluid"]
            if is_other_run or kind == "job_start":
                self._end(key, "new-run", lines)
            elif kind == "job_end":
                self._end(key, "job-end", lines)
            elif key[4] == step_id:
                # A step_start ends chains too: a chain from before it is of the run before.
                self._end(key, "step-end" if kind == "step_end" else "new-run", lines)

    def _open(self, key: "Key", chain: Chain) -> None:
        self._chains[key] = chain
        self.size_bytes += chain.size_bytes()
        self._jobs.setdefault(key[:3], {})[key] = None

    def _close(self, key: "Key") -> Chain:
        chain = self._chains.pop(key)
        self.size_bytes -= chain.size_bytes()
        keys = self._jobs[key[:3]]
        del keys[key]
        if not keys:
            del self._jobs[key[:3]]
        return chain

    def _end(self, key: "Key", reason: str, lines: "list[bytes]") -> None:
        chain = self._close(key)
        self._give(chain, chain.body, reason, lines)

    def _give(self, chain: Chain, body: bytearray, reason: str, lines: "list[bytes]") -> None:
        note: dict[str, Any] = {
            "received": chain.first_received_ns,
            "received_last": chain.last_received_ns,
            "time_last": chain.last_time_ns,
            "pieces": chain.pieces,
            "ended": reason,
        }
        if chain.doubtful:
            note["doubtful"] = True
            self.counts["doubtful"] += 1
        self.counts[reason] += 1
        lines.append(line.joined(chain.raw, body.decode("utf-8"), reason != "line" and not chain.unbuffered, note))


def _key(fields: "dict[str, Any]") -> "Key":
    slurm = fields["slurm"]
    return (
        slurm["cluster"],
        slurm["node"],
        slurm["job_id"],
        slurm.get("sluid", ""),
        slurm["step_id"],
        slurm["task_id_global"],
        fields["stream"],
    )
