# SPDX-License-Identifier: GPL-2.0-or-later
"""Coverage-guided fuzzing of decode and rejoin, by atheris (`pip install atheris`); not collected by pytest.

python tests/fuzz/scraper.py [corpus folder] [-max_total_time=600]. Any datagrams in any order give lines or counted
refusals, never an exception, within the bounds; both parsers take the same. The hypothesis tests say the same of what
hypothesis thinks of.
"""

import json
import sys
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["guard", "json"]):
    from guard.base.faults import PeerFault
    from guard.scraper import decode, rejoin

from tests.scraper import records  # noqa: E402

CHAIN_BYTES, ALL_BYTES, COUNT = 200, 2000, 4
# A bound is looked at after a piece was added, and the first piece counts as it came.
SLACK_BYTES = 1 << 16


def datagram(data: "atheris.FuzzedDataProvider") -> bytes:
    """Bytes of the fuzzer's own, or a record that differs from a good one in what it says or in one place."""
    choice = data.ConsumeIntInRange(0, 3)
    if choice == 0:
        return bytes(data.ConsumeBytes(data.ConsumeIntInRange(0, 400)))
    kind = data.PickValueInList(["log", "log", "log", "step_start", "step_end", "job_start", "job_end"])
    if kind == "log":
        more: "dict[str, Any]" = data.PickValueInList([{}, {"partial": True}, {"unbuffered": True}])
        body = data.ConsumeUnicodeNoSurrogates(data.ConsumeIntInRange(0, 120))
        fields = records.log(body + data.PickValueInList(["", "\n"]), task=data.ConsumeIntInRange(0, 5), **more)
    else:
        fields = records.step(kind) if kind.startswith("step") else records.job(kind)
    fields["slurm"]["job_id"] = data.ConsumeIntInRange(1, 2)
    raw = records.raw(fields)
    if choice == 1:
        at = data.ConsumeIntInRange(0, len(raw))
        raw = raw[:at] + bytes(data.ConsumeBytes(4)) + raw[at + data.ConsumeIntInRange(0, 4) :]
    return raw


def verdict(raw: bytes, loads: Any) -> "tuple[str, Any]":
    try:
        return "", decode.record(raw, loads)
    except PeerFault as fault:
        return fault.code, None


def one_input(given: bytes) -> None:
    """A heap of datagrams through one Rejoin."""
    data = atheris.FuzzedDataProvider(given)
    chains = rejoin.Rejoin(data.ConsumeBool(), 10.0, CHAIN_BYTES, ALL_BYTES, COUNT)
    lines: "list[bytes]" = []
    passed = 0
    now_s = 0.0
    while data.remaining_bytes():
        raw = datagram(data)
        code, fields = verdict(raw, decode.standard_loads)
        assert verdict(raw, decode.fast_loads) == (code, fields), raw
        if not code:
            chains.push(fields, raw, 1, 7, now_s, lines)
            passed += 1
            assert chains.count() <= COUNT and chains.size_bytes <= ALL_BYTES + SLACK_BYTES
        now_s += data.ConsumeIntInRange(0, 3)
        chains.expire(now_s, lines)
    chains.expire(now_s + 100, lines)
    assert (chains.count(), chains.size_bytes) == (0, 0)
    joined = sum(chains.counts[reason] for reason in rejoin.ENDS)
    assert passed == len(lines) - joined + chains.counts["pieces"]
    for line in lines:
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        assert json.loads(line)["scraper"]["received"] == 1


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
