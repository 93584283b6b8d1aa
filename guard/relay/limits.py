# SPDX-License-Identifier: GPL-2.0-or-later
"""Every number of the relay's producing side, with its unit and where it comes from. Pure; imports nothing.

"seed" is the Job I/O Relay Guide of Slurm 26.11. It gives no default for the rings: those are ours.
"""

KIB = 1024
MIB = 1024 * 1024

# What one record carries of a task's output, in KiB: default is the seed's "max_log_kbytes"; the range is ours: six
# times 64 KiB still passes a socket whose wmem_default was raised to 512 KiB.
MAX_LOG_DEFAULT_KBYTES = 4
MAX_LOG_LEAST_KBYTES = 1
MAX_LOG_MOST_KBYTES = 64
# Rings, in MiB. The seed's example has stepd_ring_mbytes=4; the range is ours.
STEPD_RING_DEFAULT_MBYTES = 4
SLURMD_RING_DEFAULT_MBYTES = 1
RING_LEAST_MBYTES = 1
RING_MOST_MBYTES = 1024
# What a record costs beside its own bytes: CPython's bytes object (33) and its place in a deque (8), rounded up.
RING_ENTRY_BYTES = 64
# An unbuffered record's body, in bytes. Seed, "How output becomes records".
UNBUFFERED_BODY_BYTES = 1024
# What a stream holds before its task waits, in bytes; twice max_log_kbytes when that is larger. Seed, "Delivery".
STREAM_BUFFER_BYTES = 128 * KIB
# The six characters that stand for a NUL. Seed, "Record format".
NUL_TEXT_BYTES = 6

# sun_path of a UNIX socket without its final NUL, in bytes: unix(7).
SOCKET_PATH_MAX_BYTES = 107
# The daemon's folder, so that `/jobs/<10 digits>-<19 digits>/interactive.sock` still fits, in bytes.
FOLDER_MAX_BYTES = SOCKET_PATH_MAX_BYTES - 53
# Seed, "Delivery": back-off between connection attempts, in ms, and the time to drain at the end, in s.
BACKOFF_FIRST_MS = 250
BACKOFF_MOST_MS = 30_000
DRAIN_S = 5.0
# ENOBUFS leaves the socket writable, so poll cannot be waited on: a pause before the next try, in ms. Ours.
NO_BUFFERS_PAUSE_MS = 20
# How long a worker waits for room at a scraper that reads: between two looks at its taps, and in one send; in ms.
# A job that outruns a slow scraper is slowed to no less than 64 KiB in about this time; one that outruns a stopped or
# absent one is not slowed at all. Ours.
PATIENCE_MS = 4
SEND_WAIT_MS = 2
# Records laid out for the kernel at once, their count and bytes, and records of one system call, after which the clock
# is looked at (each record may wait SEND_WAIT_MS): first a few, more while they are taken. Ours, from
# tests/bench/relay_worker.py.
WINDOW_FIRST_COUNT = 16
WINDOW_MOST_COUNT = 256
WINDOW_BYTES = 256 * KIB
SEND_FIRST_COUNT = 8
SEND_MOST_COUNT = 64
# "periodically after that with a running total": the seed gives no period. In ms, ours.
DROP_REPORT_PERIOD_MS = 60_000

# The protocol between tap and daemon: guard/relay/frames.py.
FRAME_PAYLOAD_MAX_BYTES = 64 * KIB
FIELDS_MAX_BYTES = 4096
NOTE_MAX_BYTES = 512
ID_MOST = 0xFFFF_FFFF
# Slurm's step numbers, slurm.h 20.11 to 26.05: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP.
STEP_BATCH = 0xFFFF_FFFB
STEP_INTERACTIVE = 0xFFFF_FFFA
# From here on step numbers have a meaning of their own (slurm.h: SLURM_PENDING_STEP ... SLURM_INTERACTIVE_STEP).
STEP_SPECIAL_LEAST = 0xFFFF_FFF0
# slurm.h: NO_VAL16, INFINITE16.
NO_VAL16 = 0xFFFE
INFINITE16 = 0xFFFF

# A tally (guard/relay/tally.py): where its two commits and its taps' slots begin, in bytes.
TALLY_COMMITS_AT = 8
TALLY_SLOTS_AT = 56
# How long a peer may take to send its first frame, in s.
FIRST_FRAME_S = 1.0
# Connections that have not said yet what they are, and jobs, that the daemon keeps; taps and streams of a worker.
PENDING_MOST_COUNT = 4096
PENDING_MOST_PER_UID_COUNT = 1024
JOBS_MOST_COUNT = 10_000
TAPS_MOST_COUNT = 1024
STREAMS_MOST_COUNT = 4096
# Workers of one job that live at once: a process each, outside the job's cgroup. Fewer where any user can ask for them.
WORKERS_MOST_PER_JOB_COUNT = 1024
USER_WORKERS_MOST_PER_JOB_COUNT = 64
# Lines that a step's taps may put into the node's log (LOST, NOTE).
TOLD_MOST_COUNT = 100
# How long a numbered step waits for another `relay exec` after its last one, in s.
STEP_LINGER_S = 5.0
# How often a worker that only waits for its job's end looks whether it can still be told of it, in s.
LONELY_LOOK_S = 60.0
# How long job_end waits for the job's workers to finish, in s: their drain and a little. How often it looks, in ms.
JOB_END_WAIT_S = DRAIN_S + 2.0
JOB_END_LOOK_MS = 50

# A tap: how long its command waits for the first answer; a gap without a frame taken that counts as hung; how often a
# tap that is held tries meanwhile; all such gaps together before it gives up; its end at most (seed's drain limit).
# In ms.
TAP_FIRST_ANSWER_MS = 500
TAP_HUNG_GAP_MS = 250
TAP_HUNG_LOOK_MS = 50
TAP_HUNG_TOTAL_MS = 2000
TAP_END_MS = 5000
# What a hook waits for the daemon's answer, in ms.
EVENT_ANSWER_MS = 2000

# What `relay exec` moves at once, in bytes: a pipe's default content, pipe(7).
COPY_BYTES = 64 * KIB
# After its command has ended: how long a pipe that others still hold is looked at before a copy of ours stays with
# them, in ms. A shell's children end a moment before it does.
LEFTOVER_LOOK_MS = 20
