// SPDX-License-Identifier: GPL-2.0-or-later
#include "frames.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void little(uint8_t *out, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t from_little(const uint8_t *bytes, int count)
{
	uint64_t value = 0;

	for (int i = 0; i < count; i++)
		value |= (uint64_t)bytes[i] << (8 * i);
	return value;
}

void frame_header(uint8_t out[FRAME_HEADER_BYTES], const struct frame_head *head, uint32_t length_bytes)
{
	memset(out, 0, FRAME_HEADER_BYTES);
	out[0] = head->kind;
	out[1] = head->stream;
	out[2] = head->flags;
	little(out + 4, head->task_local, 4);
	little(out + 8, head->task_global, 4);
	frame_length(out, length_bytes);
	little(out + 16, head->time_ns, 8);
}

void frame_length(uint8_t header[FRAME_HEADER_BYTES], uint32_t length_bytes)
{
	little(header + 12, length_bytes, 4);
}

void fields_add(struct fields *fields, const char *name, const char *value)
{
	size_t size = strlen(name) + 1 + strlen(value) + 1;

	if (size > sizeof(fields->bytes) - fields->used_bytes)
		return;
	/* The NUL that ends the text ends the pair too. */
	snprintf((char *)fields->bytes + fields->used_bytes, size, "%s=%s", name, value);
	fields->used_bytes += size;
}

void fields_add_number(struct fields *fields, const char *name, uint64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	fields_add(fields, name, digits);
}

/* The number of a field; false: absent, or not only digits. */
static bool number(const char *text, size_t size_bytes, const char *name, uint64_t *value)
{
	size_t name_bytes = strlen(name);

	for (size_t at = 0; at < size_bytes; at += strlen(text + at) + 1) {
		const char *digits = text + at + name_bytes + 1;

		if (strncmp(text + at, name, name_bytes) || text[at + name_bytes] != '=')
			continue;
		if (!*digits || strlen(digits) > 18 || digits[strspn(digits, "0123456789")])
			return false;
		*value = strtoull(digits, NULL, 10);
		return true;
	}
	return false;
}

bool frame_answer(const uint8_t *packet, size_t size_bytes, struct answer *answer)
{
	const char *text = (const char *)packet + FRAME_HEADER_BYTES;
	uint64_t code;
	size_t length;

	if (size_bytes <= FRAME_HEADER_BYTES || packet[0] != FRAME_ANSWER)
		return false;
	length = size_bytes - FRAME_HEADER_BYTES;
	/* Ended by NUL: string functions stay inside. */
	if (from_little(packet + 12, 4) != length || length > FIELDS_MAX_BYTES || text[length - 1])
		return false;
	if (!number(text, length, "code", &code) || code > 255)
		return false;
	answer->code = (int)code;
	if (!number(text, length, "stream_buffer_bytes", &answer->buffer_bytes))
		answer->buffer_bytes = 0;
	if (!number(text, length, "tally_slot", &answer->tally_slot))
		answer->tally_slot = 0;
	return true;
}

void frame_count(uint8_t out[8], uint64_t count)
{
	little(out, count, 8);
}

uint64_t frame_count_of(const uint8_t payload[8])
{
	return from_little(payload, 8);
}
