/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * One step's streams: a thread of slurmstepd copies each to its original destination, first, and offers the relay a
 * copy. Order room. The calls are slurmstepd's, from whichever thread runs the hooks, one at a time.
 */
#ifndef RELAY_COPIER_H
#define RELAY_COPIER_H

#include "handover.h"
#include "link.h"

struct copier;

/* A copier whose step is relayed, its thread running; NULL: the step is not relayed. Waits at most FIRST_ANSWER_MS.
 *
 * Takes: path - the daemon's socket; hello - what the step is; is_batch - nobody but us waits for the step's output;
 * log - called with a sentence for the node's log, from either thread. */
struct copier *copier_start(const char *path, const struct fields *hello, uint32_t task_count, bool is_batch,
			    void (*log)(const char *sentence));

/* In a task's process, once it is the user's: its output goes through the copier from here on. */
void copier_adopt(const struct copier *copier, uint32_t local, uint32_t global);

/* Waits until what this task wrote is at its destination, as far as nobody else waits for it. */
void copier_drain(struct copier *copier, uint32_t local);

/* The step is over: all of it at its destination, the rest of the relay's copy sent or counted; frees the copier. */
void copier_finish(struct copier *copier);

#endif
