# SPDX-License-Identifier: GPL-2.0-or-later
"""What a tap, a hook and the node daemon say to each other, as bytes. Pure.

This text is the whole protocol: build/spank/ speaks it in C.

Parties
    tap     reads a task's pipe, writes the original destination itself and first, and sends a copy:
            the SPANK tap in slurmstepd, or `relay exec`.
    hook    tells of the start and end of a job: `relay event` in Prolog and Epilog, or the SPANK plugin there.
    daemon  `relay node`. It listens on two AF_UNIX SOCK_SEQPACKET sockets in its folder (default /run/eessi-relay):
                <folder>/control.sock   mode 0600, root:   hooks and taps of root (the SPANK tap)
                <folder>/tap.sock       mode 0666:         taps of any user (`relay exec`)
            Both speak the same; what a peer may do follows from its uid (SO_PEERCRED, noted at connect()).
    worker  one process a step, started by the daemon, never spoken to by its own address.

One packet is one frame. SOCK_SEQPACKET keeps the borders: send() passes a whole frame or none (EAGAIN), so a
sender that must not wait needs no half-sent state, and a reader needs no reassembly.

Frame = header of 28 bytes, then the payload. Integers are little-endian, nothing is padded:

    offset  size  field
         0     1  kind             see below
         1     1  stream           1 stdout, 2 stderr; 0 where no stream is meant
         2     1  flags            bit 0: unbuffered (DATA); others 0
         3     1  zero
         4     4  task_id_local    0 where no task is meant
         8     4  task_id_global
        12     4  length           bytes of payload; must be the packet's size - 28
        16     8  time_ns          CLOCK_REALTIME in ns when the bytes were read from the task (DATA); else 0.
                                   Below 2^63
        24     4  zero

    payload: at most 65,536 bytes. A longer packet, a length that does not match, an unknown kind or stream: the
    receiver closes the connection (and counts it); a tap then goes on without the relay.

kinds
    1 HELLO     tap -> daemon    the first frame of a tap. Fields: job_id, step_id (both required), whole_step
    2 EVENT     hook -> daemon   the first frame of a hook. Fields: event, job_id, uid (required), others below
    3 ANSWER    daemon or worker -> tap or hook, exactly one after HELLO or EVENT. Fields: code, and for code 0 of a
                HELLO: stream_buffer_bytes, max_log_bytes, tally_slot and a file descriptor (below, "Tally"; both
                absent where a worker has none). code is one of:
                    0  yes: send (HELLO); the job is relayed (EVENT job_start), was relayed (EVENT job_end)
                    1  no: this job is settled as not relayed, or this node relays nothing, or (without whole_step)
                       a tap with whole_step has this step already
                    2  no such job here (no job_start was told, or job_end has been)
                    3  not allowed: the peer is neither root nor the job's user; EVENT from another uid than 0
                    4  too many: connections, streams or jobs; come back later
                    5  not understood: the fields are wrong; text says which
                    6  the daemon cannot (no process, no memory); come back later
                and text, a sentence for a person.
    4 DATA      tap -> worker    bytes that one task wrote to one stream, in the order written. Never empty.
    5 END       tap -> worker    this stream of this task is over; no more DATA for it on any connection.
    6 LOST      tap -> worker    payload: 8 bytes, a count: so many bytes of this stream were written to the original
                                 destination and will never be sent (the relay was too slow or away). Logged.
                                 Stream 0: of any stream, sent to a worker that died before they were records.
    7 NOTE      tap -> worker    payload: up to 512 bytes of text for the relay's log (an original destination failed).
    8 DRAIN     tap -> worker    asks for DRAINED.
    9 DRAINED   worker -> tap    every frame that this connection sent before DRAIN has become records in the ring, or
                                 has left it. It does not mean that a scraper has read them.
   10 BYE       tap -> worker    this tap is done. With whole_step=1 in its HELLO, and no other such tap there, the step
                                 is over: step_end.
    A tap that closes without BYE: its streams end as by END; the step goes on (the tap may come back). Frames sent
    before a close are still read by the worker: nobody has to wait for them.

Fields: `name=value` pairs, each ended by one NUL byte (also the last), values without NUL, at most 4,096 bytes in
all, no name twice. Names not known here are ignored. Numbers are decimal digits only.

    HELLO:  job_id        SLURM_JOB_ID of the job on this node, 1..4294967295
            step_id       Slurm's number: 0.. for srun steps, 4294967291 (0xfffffffb) batch, 4294967290 interactive
            whole_step    1: this tap carries all tasks of the step on this node and its BYE ends the step (SPANK; one
                          for each slurmstepd, of which a step has one on a node).
                          0 or absent: others may come (`relay exec`, one per task)
    EVENT:  event         job_start or job_end
            job_id, uid   numbers, as Slurm's prolog environment has them (SLURM_JOB_ID, SLURM_JOB_UID)
            relay_io      yes, no or default: what the job asked for; absent: default. Only with job_start
            cluster, node, user_name, partition, account, sluid, restart_count
                          as slurmd's environment has them; absent fields are left out of the records. Only with
                          job_start: job_end uses what job_start said.

Handshake of a tap
    1. socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC), connect to control.sock (root) or tap.sock.
       ENOENT, ECONNREFUSED, EAGAIN (backlog full): no relay now.
    2. send HELLO. No fd is ever passed by or to a tap: the daemon looks the job up, checks the peer's uid, and hands
       this very connection to the step's worker (SCM_RIGHTS, between daemon and worker only).
    3. ANSWER comes from the worker (code 0) or from the daemon (any other code, then it closes). DATA may be sent
       before ANSWER has come; a tap need not hold a task for it.
    4. DATA ... END for each stream, DRAIN, DRAINED, then BYE, close.

Tally
    A worker that is killed must not take with it what nobody counts. What it has made of a tap's bytes it writes into a
    file (guard/relay/tally.py), and the tap has got that to read, by SCM_RIGHTS with the ANSWER. When the connection
    ends before DRAINED, the tap reads there how much of what it sent is in records or was logged; the rest is lost:

        offset                   size  field
        0                           1  h, 0 or 1: which commit counts; other bits to be ignored
        8 + 24 h                    8  records made, not the tap's affair
        16 + 24 h                   8  a tap's slot
        24 + 24 h                   8  signed: bytes of DATA, and counts of LOST, of the tap with that slot
        56 + 8 tally_slot           8  signed: the same of this tap, where the commit is another's

    Bytes of DATA that the worker holds for the end of their line are not in it.

What a tap owes the job (design section 8, seed relay_io "Delivery")
    - the original destination first; a copy after.
    - each stream holds up to stream_buffer_bytes (before ANSWER: 131,072) of what is not sent yet; when that is full it
      stops reading, and the task waits. Streams are served in turn.
    - if no frame was taken for 0.25 s while something waits, that whole gap counts as hung time; when the gaps of a
      step add up to 2 s the tap gives the relay up for the rest of the step, frees its buffers and counts what it
      did not send. EPIPE, ECONNRESET or end of file: the worker died; connect again, at most after 0.25 s, 0.5 s, 1 s
      ... 30 s, never holding the task meanwhile; bytes that find the buffer full are counted, and told by LOST
      after the next ANSWER.
    - at its end it tries at most until its 2 s are spent, and never more than 5 s, to send what is left and to hear
      that all of it was taken.
Identity (user, account, restart count, ...) comes from the daemon's job table only, never from a tap.
"""

import struct

from guard.base.faults import PeerFault
from guard.relay.limits import FIELDS_MAX_BYTES, FRAME_PAYLOAD_MAX_BYTES

CONTROL_NAME = "control.sock"
TAP_NAME = "tap.sock"

HELLO, EVENT, ANSWER, DATA, END, LOST, NOTE, DRAIN, DRAINED, BYE = range(1, 11)
STDOUT, STDERR = 1, 2
UNBUFFERED = 1
_STREAMS_OF = {DATA: (STDOUT, STDERR), END: (STDOUT, STDERR), LOST: (0, STDOUT, STDERR)}

YES, NO, UNKNOWN_JOB, NOT_ALLOWED, TOO_MANY, NOT_UNDERSTOOD, CANNOT = range(7)

_HEADER = struct.Struct("<BBBBIIIQI")
HEADER_BYTES = _HEADER.size
PACKET_MAX_BYTES = HEADER_BYTES + FRAME_PAYLOAD_MAX_BYTES
_COUNT = struct.Struct("<Q")


class Frame:
    """One frame as it came: kind, stream, is_unbuffered, task_local, task_global, time_ns, payload (bytes)."""

    __slots__ = ("is_unbuffered", "kind", "payload", "stream", "task_global", "task_local", "time_ns")

    def __init__(
        self,
        kind: int,
        payload: bytes = b"",
        stream: int = 0,
        task_local: int = 0,
        task_global: int = 0,
        time_ns: int = 0,
        is_unbuffered: bool = False,
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.stream = stream
        self.task_local = task_local
        self.task_global = task_global
        self.time_ns = time_ns
        self.is_unbuffered = is_unbuffered


def pack(frame: Frame) -> bytes:
    """The packet of a frame. The payload is within its bound: its maker's duty."""
    flags = UNBUFFERED if frame.is_unbuffered else 0
    return (
        _HEADER.pack(
            frame.kind,
            frame.stream,
            flags,
            0,
            frame.task_local,
            frame.task_global,
            len(frame.payload),
            frame.time_ns,
            0,
        )
        + frame.payload
    )


def answer(code: int, text: str) -> bytes:
    """The packet of an ANSWER that is not a welcome. text: a sentence for a person."""
    return pack(Frame(ANSWER, fields_payload({"code": b"%d" % code, "text": text.encode().replace(b"\0", b"?")})))


def unpack(packet: bytes) -> Frame:
    """The frame of a packet from a peer.

    Raises: PeerFault(bad-frame) - too short, too long, a length that lies, an unknown kind, stream or flag.
    """
    if not HEADER_BYTES <= len(packet) <= PACKET_MAX_BYTES:
        raise PeerFault("bad-frame", f"{len(packet)} bytes")
    kind, stream, flags, zero, task_local, task_global, length, time_ns, zeros = _HEADER.unpack_from(packet)
    if length != len(packet) - HEADER_BYTES:
        raise PeerFault("bad-frame", f"length {length} in a packet of {len(packet)} bytes")
    if not HELLO <= kind <= BYE or zero or zeros or flags & ~UNBUFFERED:
        raise PeerFault("bad-frame", f"kind {kind}, flags {flags}")
    if time_ns >> 63:  # readers of records keep time as a signed 64-bit number
        raise PeerFault("bad-frame", f"time_ns {time_ns}")
    if stream not in _STREAMS_OF.get(kind, (0,)):
        raise PeerFault("bad-frame", f"stream {stream} with kind {kind}")
    if (kind == LOST and length != _COUNT.size) or (kind == DATA and not length):
        raise PeerFault("bad-frame", f"payload of {length} bytes with kind {kind}")
    return Frame(kind, packet[HEADER_BYTES:], stream, task_local, task_global, time_ns, bool(flags & UNBUFFERED))


def count_payload(count: int) -> bytes:
    """The payload of LOST."""
    return _COUNT.pack(count)


def count_of(frame: Frame) -> int:
    """How many bytes a LOST frame tells of."""
    count: int = _COUNT.unpack(frame.payload)[0]
    return count


def fields_payload(fields: "dict[str, bytes]") -> bytes:
    """The payload of HELLO, EVENT and ANSWER. Values hold no NUL: they come from an environment or from here."""
    return b"".join(b"%s=%s\0" % (name.encode(), value) for name, value in fields.items())


def fields_of(payload: bytes) -> "dict[str, bytes]":
    """The fields of a payload from a peer.

    Raises: PeerFault(bad-fields) - too long, not ended by NUL, a pair without `=`, a name twice or not ASCII.
    """
    if len(payload) > FIELDS_MAX_BYTES or (payload and payload[-1]):
        raise PeerFault("bad-fields", "too long, or not ended by NUL")
    fields: "dict[str, bytes]" = {}
    for pair in payload.split(b"\0")[:-1]:
        name, equals, value = pair.partition(b"=")
        if not equals or not name.isascii() or name.decode("ascii", "replace") in fields:
            raise PeerFault("bad-fields", "a pair without =, or a name twice")
        fields[name.decode("ascii")] = value
    return fields


def number(fields: "dict[str, bytes]", name: str, most: int, least: int = 0) -> int:
    """The number that a field holds.

    Raises: PeerFault(bad-fields) - absent, not decimal digits, or outside least..most.
    """
    digits = fields.get(name, b"")
    if not 0 < len(digits) <= 20 or not digits.isdigit() or not least <= int(digits) <= most:
        raise PeerFault("bad-fields", f"{name} is not a number from {least} to {most}")
    return int(digits)
