/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Every number of the tap. Those that guard/relay/limits.py has too are the same there (tests/spank/test_build.py).
 */
#ifndef RELAY_LIMITS_H
#define RELAY_LIMITS_H

/* The protocol: guard/relay/frames.py. */
#define FRAME_HEADER_BYTES 28
#define FRAME_PAYLOAD_MAX_BYTES 65536
#define FIELDS_MAX_BYTES 4096
#define NOTE_MAX_BYTES 512
/* What a stream holds that is not sent yet, until the worker says its own number, and the most that it may say. */
#define STREAM_BUFFER_BYTES 131072
#define STREAM_BUFFER_MOST_BYTES (16 * 1024 * 1024)
/* A worker's tally: guard/relay/tally.py. */
#define TALLY_COMMITS_AT 8
#define TALLY_COMMIT_BYTES 24
#define TALLY_SLOTS_AT 56
#define TALLY_SLOT_BYTES 8
#define TAPS_MOST_COUNT 1024
#define BACKOFF_FIRST_MS 250
#define BACKOFF_MOST_MS 30000
/* A gap without a frame taken that counts as hung; how often a tap that is held tries meanwhile; all such gaps of a step;
 * the step's end at most. */
#define TAP_HUNG_GAP_MS 250
#define TAP_HUNG_LOOK_MS 50
#define TAP_HUNG_TOTAL_MS 2000
#define TAP_END_MS 5000

/* One read of a task's pipe: a pipe's default content, pipe(7). */
#define COPY_BYTES 65536
/* Reads that wait are joined up to here: a task that writes byte by byte must not cost an allocation for each. */
#define JOIN_BYTES 4096
/* A pipe's largest content, pipe(7) fs.pipe-max-size: what a task that has ended can have left in it. */
#define PIPE_MOST_BYTES (1024 * 1024)
/* What a step waits for the daemon's first answer (part of TAP_HUNG_TOTAL_MS), and a prolog or epilog for its own. */
#define FIRST_ANSWER_MS 1000
#define HOOK_ANSWER_MS 1000
/* What a task waits for slurmstepd to take its streams. Slurmstepd answers in microseconds unless a disk holds it. */
#define HANDOVER_MS 500
/* What a step waits, once, for a srun that does not take what a task left. */
#define SRUN_MS 250
/* What a step's end waits for the original destination: slurmstepd's own limit, mgr.c _wait_for_io(). Not where a
 * server hangs below a file: that is waited for as long as the task itself would be held by it. */
#define ORIGINAL_MOST_MS 300000
/* Tasks of a step on one node that can be relayed: half of the streams that a worker takes. */
#define TASKS_MOST_COUNT 2048

#endif
