/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The relay's protocol as bytes, the part a tap and a hook need; guard/relay/frames.py is its text. Pure.
 */
#ifndef RELAY_FRAMES_H
#define RELAY_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"

enum frame_kind {
	FRAME_HELLO = 1,
	FRAME_EVENT,
	FRAME_ANSWER,
	FRAME_DATA,
	FRAME_END,
	FRAME_LOST,
	FRAME_NOTE,
	FRAME_DRAIN,
	FRAME_DRAINED,
	FRAME_BYE
};
enum frame_stream { STREAM_NONE, STREAM_STDOUT, STREAM_STDERR };
enum frame_flag { FLAG_UNBUFFERED = 1 };
enum answer_code {
	ANSWER_YES,
	ANSWER_NO,
	ANSWER_UNKNOWN_JOB,
	ANSWER_NOT_ALLOWED,
	ANSWER_TOO_MANY,
	ANSWER_NOT_UNDERSTOOD,
	ANSWER_CANNOT
};

struct frame_head {
	uint8_t kind, stream, flags;
	uint32_t task_local, task_global;
	uint64_t time_ns;
};

/* Fields of a HELLO or EVENT as they grow; what does not fit is left out whole. */
struct fields {
	size_t used_bytes;
	uint8_t bytes[FIELDS_MAX_BYTES];
};

/* buffer_bytes: 0 where the answer has none. */
struct answer {
	int code;
	uint64_t buffer_bytes, tally_slot;
};

/* The header of a frame with a payload of this length. */
void frame_header(uint8_t out[FRAME_HEADER_BYTES], const struct frame_head *head, uint32_t length_bytes);

/* Another length in a header that is made. */
void frame_length(uint8_t header[FRAME_HEADER_BYTES], uint32_t length_bytes);

void fields_add(struct fields *fields, const char *name, const char *value);
void fields_add_number(struct fields *fields, const char *name, uint64_t value);

/* Whether a packet is an ANSWER, and which. */
bool frame_answer(const uint8_t *packet, size_t size_bytes, struct answer *answer);

/* A count in the payload of LOST, and back. */
void frame_count(uint8_t out[8], uint64_t count);
uint64_t frame_count_of(const uint8_t payload[8]);

#endif
