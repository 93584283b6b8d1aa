# SPDX-License-Identifier: GPL-2.0-or-later
"""Every number of the guard, with its unit and where it comes from. Pure; imports nothing."""

# The guard's deadline. Seed guard-emits "Deadline"; the range is design section 3.
DEADLINE_DEFAULT_S = 60.0
DEADLINE_MIN_S = 1.0
DEADLINE_MAX_S = 600.0
# How long a killed child may take to be gone. Seed guard-emits "Deadline".
POST_KILL_WAIT_SECONDS = 5.0
# How long a chained prolog's own children may hold its pipe after it ended. Slurm waits without end
# (task.c, run_command.c, every version); `exec > >(tee log)` needs some of it, a leftover daemon must not
# have all of it.
CHAIN_EOF_WAIT_S = 5.0

# A line of prolog output with its newline, in bytes: fgets on char buf[4096], sizeof - 1.
# Slurm 17.11 to 22.05.0, src/slurmd/slurmstepd/task.c. 22.05.1 (9aba6992de) took the limit away.
PROLOG_LINE_MAX = 4094
# name + value + 2 must be less, in bytes. Slurm 20.02 to 26.05 src/common/env.c MAX_ENV_STRLEN (a longer one
# is refused and the OLD value stays), and Linux MAX_ARG_STRLEN.
SLURM_ENTRY_MAX_BYTES = 131072
# A piece that a pipe with any room takes without blocking: PIPE_BUF, pipe(7).
PIPE_PIECE_BYTES = 4096

# A module name, in bytes. Design section 3.
MODULE_NAME_MAX_BYTES = 255

# What a child may print before the rest is thrown away, in bytes. A detector's answer is under 200.
DETECTOR_OUTPUT_MAX_BYTES = 65536
# A whole environment as JSON with every byte escaped: 6 x Linux's ARG_MAX ceiling of 6 MiB, fs/exec.c.
HELPER_OUTPUT_MAX_BYTES = 36 << 20
# What is kept of Lmod's stderr, and of the one line of it that a person is shown, in bytes. A print line takes 4094.
LMOD_OUTPUT_MAX_BYTES = 65536
LMOD_LINE_MAX_BYTES = 400
# A chained prolog's own output, in bytes. Slurm's setenvf buffer is 256 KiB (env.c ENV_BUFSIZE); 64 of those.
CHAIN_OUTPUT_MAX_BYTES = 16 << 20

# A cached outcome, in bytes: Linux's ARG_MAX ceiling of 6 MiB (fs/exec.c) holds every environment, and room for quotes.
CACHE_FILE_MAX_BYTES = 8 << 20
# A file of a step that is older, in seconds, belongs to no step that still starts tasks.
CACHE_AGE_MAX_S = 86400.0
# How many folder entries, and how many files of ours among them, one decision looks at while it tidies up.
SWEEP_ENTRIES_MAX_COUNT = 2000
SWEEP_FILES_MAX_COUNT = 100
# How often a task that waits for the lock looks at the deadline and at signals, in seconds: a person's patience.
LOCK_LOOK_S = 0.2
