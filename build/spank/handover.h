/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A task gives its stdout and stderr to slurmstepd and writes to pipes (or a pty) from then on. World room.
 *
 * The pipes are made in the task's process, after it has become the user: then they are the user's, `>/dev/stderr`
 * opens them, and what the step does not need is never made. Whether the task's streams were taken is one number in
 * shared memory that both sides set by compare-and-swap: a task that waited too long keeps what it had, for certain.
 */
#ifndef RELAY_HANDOVER_H
#define RELAY_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

/* One stream as it comes from a task. source: what slurmstepd reads; original: where it belongs. */
struct taken_stream {
	int source, original;
	uint8_t stream;
};
struct taken_task {
	uint32_t local, global;
	bool is_unbuffered;
	int count;
	struct taken_stream streams[2];
};

/* Both ends are close-on-exec; slurmstepd keeps both. states: one for each task of the step here. */
struct handover {
	int ours, tasks;
	uint32_t task_count;
	uint32_t *states;
};

/* False: no room for it. */
bool handover_init(struct handover *handover, uint32_t task_count);

/* In the task: swaps its fds 1 and 2. False: they are what they were. */
bool handover_give(const struct handover *handover, uint32_t local, uint32_t global);

/* In slurmstepd: the next task's streams. 1: taken; 0: nothing is there; -1: none will come. */
int handover_take(const struct handover *handover, struct taken_task *task);

/* Closes what is open: our end, or all. */
void handover_close_ours(struct handover *handover);
void handover_close(struct handover *handover);

#endif
