# SPDX-License-Identifier: GPL-2.0-or-later
"""Every number of the scraper, with its unit and where it comes from. Pure; imports nothing."""

# The longest datagram that is taken whole, in bytes: at least the kernel's usual net.core.wmem_default, and at most
# what the seed's own receiver reads ("Verifying it works": 8 << 20).
RECEIVE_MIN_BYTES = 256 << 10
RECEIVE_MAX_BYTES = 8 << 20
# What is taken from the kernel in one look, in datagrams, and so what kill -9 can cost of records that the producer
# believes to be delivered. Three times the kernel's own default queue.
RECEIVE_SLOTS_COUNT = 32
# Below this the start warns. systemd sets 512 at boot (DEFAULT_UNIX_MAX_DGRAM_QLEN); the kernel's own default is 10.
DGRAM_QLEN_LOW_COUNT = 128
# How often a process looks at what is not a datagram (age of chains, the log of slurmd, its parent), in seconds.
TICK_S = 0.2

# A chain of partial records, in bytes of body. Past it the line is cut.
CHAIN_MAX_BYTES = 1 << 20
# All open chains together, in bytes of body and in chains. Past it the one that was quiet longest is ended.
CHAINS_MAX_BYTES = 8 << 20
CHAINS_MAX_COUNT = 4096
# A chain that got nothing for so long is ended, in seconds. fluentd's concat filter waits 60.
CHAIN_AGE_S = 60.0
# Steps whose drop reports are remembered, so that their later lines are marked.
LOSSY_STEPS_MAX_COUNT = 1024

# A spool segment and all of them, in bytes. Vector's disk buffer: 128 MiB files, 256 MiB at least.
SEGMENT_MAX_BYTES = 16 << 20
SPOOL_MAX_BYTES = 1 << 30
# How often written segments are made to reach the disk, in seconds. Vector: 0.5.
SYNC_S = 1.0
# A quarantine file; twice that with the one before it, in bytes. What does not fit is counted only.
QUARANTINE_MAX_BYTES = 8 << 20

# Retries of a sink, in seconds: the wait doubles from the first to the last, each time a random part of it.
BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 30.0
# What a Retry-After may ask of us at most.
RETRY_AFTER_MAX_S = 300.0
# One attempt of a sink, in seconds.
ATTEMPT_S = 10.0
# How long a sink may refuse every line before they are set aside, in seconds: a day, so that a person has seen it.
ALL_REFUSED_S = 86400.0
# A line up to here no store refuses for its length, in bytes. Elasticsearch's longest keyword is 32,766 bytes.
PLAIN_LINE_BYTES = 16 << 10
# The last try of each sink at the end, in seconds; systemd's TimeoutStopSec in our unit is longer.
STOP_TRY_S = 5.0
# How long a new scraper waits for the one before it to be gone, in seconds.
LOCK_WAIT_S = 10.0

# What goes to a sink in one batch at most. Loki and _bulk take some MiB; 1 MiB is what every collector takes.
SINK_BATCH_RECORDS = 2000
SINK_BATCH_BYTES = 1 << 20
# How long a sink looks away when there is nothing new, in seconds.
SINK_IDLE_S = 0.1

# A file of the file sink, in bytes, and its age in seconds; then it is renamed.
FILE_MAX_BYTES = 256 << 20
FILE_MAX_AGE_S = 86400.0
# Open files of one file sink. A node runs some hundred steps at most; the limit of a service is 1024.
OPEN_FILES_MAX_COUNT = 128

# What of a line of slurmd's log is kept, and how much of the log is read in one look, in bytes.
LOG_LINE_MAX_BYTES = 2048
LOG_LOOK_BYTES = 1 << 20
# How often the place in it is kept when there is nothing to report, in seconds.
LOG_KEEP_S = 5.0
