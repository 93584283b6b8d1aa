/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A step's connection to the relay: frames that wait, sent without ever waiting. World room; guard/relay/tap.py in C.
 * The clock is an argument. Used by one thread at a time.
 */
#ifndef RELAY_LINK_H
#define RELAY_LINK_H

#include <sys/un.h>

#include "frames.h"

#define NEVER_MS INT64_MAX

struct packet {
	struct packet *next;
	uint32_t length_bytes, space_bytes; /* of the payload */
	uint8_t frame[];                    /* header, payload */
};

/* One stream of one task: what waits to be sent, oldest first. lost_bytes: what no LOST frame tells of; of the lane of
 * notes: of all streams, what a worker held when it died. */
struct lane {
	struct lane *next_turn;
	struct packet *first, *last;
	size_t held_bytes;
	uint64_t lost_bytes;
	struct frame_head head;
};

/* Lanes are served in turn, from first_turn on: those with packets. stuck_ms: since when the job waits; -1: it does
 * not. look_ms: when it is tried again meanwhile. code: of the last answer, -1 none. tally: of the worker, -1 none;
 * sent_bytes: what should stand there in the end; left_bytes: what at our end did not, but may yet. has_asked,
 * is_drained: of DRAIN. */
struct link {
	struct sockaddr_un place;
	struct fields hello;
	struct lane notes;
	struct lane *first_turn, *last_turn;
	size_t buffer_bytes;
	int64_t try_ms, backoff_ms, stuck_ms, look_ms, hung_left_ms;
	uint64_t tally_slot, sent_bytes, left_bytes;
	int fd, code, tally;
	bool is_open, is_given_up, is_ending, has_asked, is_drained, wants_write;
};

/* False: the path is too long for a socket. */
bool link_init(struct link *link, const char *path);

/* How many bytes of a stream may be read from its task now; 0: the task waits. Without a worker it never waits. */
size_t link_room(const struct link *link, const struct lane *lane);

/* Takes a copy of what a task wrote, at most COPY_BYTES. */
void link_offer(struct link *link, struct lane *lane, const uint8_t *bytes, size_t size_bytes, uint64_t time_ns);

/* A stream is over. */
void link_end(struct link *link, struct lane *lane);

/* A sentence for the relay's log. */
void link_note(struct link *link, const char *text);

/* Connects when due, reads answers, sends what can be sent, gives up when the relay has hung too long. */
void link_pump(struct link *link, int64_t now_ms);

/* When link_pump() is due even if nothing happens. */
int64_t link_next_ms(const struct link *link);

/* From now on whatever waits makes the step wait, so time counts as hung; one more attempt to connect is due. */
void link_expect_end(struct link *link);

/* At the end: all that could be sent was sent and taken. */
bool link_is_idle(const struct link *link);

/* Says BYE if everything is sent; counts what is not into its lane; closes. */
void link_close(struct link *link);

/* A connection of ours to a socket whose owner is root or we; -1 with errno. It never blocks. */
int link_connect(const struct sockaddr_un *place);

#endif
