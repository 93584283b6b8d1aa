// SPDX-License-Identifier: GPL-2.0-or-later
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

bool link_init(struct link *link, const char *path)
{
	memset(link, 0, sizeof(*link));
	link->place.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(link->place.sun_path))
		return false;
	strcpy(link->place.sun_path, path);
	link->notes.head.kind = FRAME_NOTE;
	link->buffer_bytes = STREAM_BUFFER_BYTES;
	link->backoff_ms = BACKOFF_FIRST_MS;
	link->stuck_ms = -1;
	link->hung_left_ms = TAP_HUNG_TOTAL_MS;
	link->fd = -1;
	link->code = -1;
	link->tally = -1;
	return true;
}

size_t link_room(const struct link *link, const struct lane *lane)
{
	size_t room;

	if (!link->is_open)
		return COPY_BYTES;
	if (lane->held_bytes >= link->buffer_bytes)
		return 0;
	room = link->buffer_bytes - lane->held_bytes;
	return room < COPY_BYTES ? room : COPY_BYTES;
}

static void take_turn(struct link *link, struct lane *lane)
{
	lane->next_turn = NULL;
	if (link->last_turn)
		link->last_turn->next_turn = lane;
	else
		link->first_turn = lane;
	link->last_turn = lane;
}

static bool queue(struct link *link, struct lane *lane, const struct frame_head *head, const void *payload, size_t size)
{
	size_t space = head->kind == FRAME_DATA && size < JOIN_BYTES ? JOIN_BYTES : size;
	struct packet *packet = malloc(sizeof(*packet) + FRAME_HEADER_BYTES + space);

	if (!packet)
		return false;
	packet->next = NULL;
	packet->length_bytes = (uint32_t)size;
	packet->space_bytes = (uint32_t)space;
	frame_header(packet->frame, head, packet->length_bytes);
	if (size)
		memcpy(packet->frame + FRAME_HEADER_BYTES, payload, size);
	if (lane->last)
		lane->last->next = packet;
	else
		lane->first = packet;
	if (!lane->last)
		take_turn(link, lane);
	lane->last = packet;
	return true;
}

/* Puts what was lost at its place: after what was offered before, before what comes next. */
static void queue_loss(struct link *link, struct lane *lane)
{
	struct frame_head head = lane->head;
	uint8_t count[8];

	if (!lane->lost_bytes || link->is_given_up)
		return;
	head.kind = FRAME_LOST;
	frame_count(count, lane->lost_bytes);
	if (queue(link, lane, &head, count, sizeof(count)))
		lane->lost_bytes = 0;
}

static bool join(struct lane *lane, const uint8_t *bytes, size_t size)
{
	struct packet *last = lane->last;

	if (!last || last->frame[0] != FRAME_DATA || last->space_bytes - last->length_bytes < size)
		return false;
	memcpy(last->frame + FRAME_HEADER_BYTES + last->length_bytes, bytes, size);
	last->length_bytes += (uint32_t)size;
	/* The time stays that of the first read. */
	frame_length(last->frame, last->length_bytes);
	return true;
}

void link_offer(struct link *link, struct lane *lane, const uint8_t *bytes, size_t size_bytes, uint64_t time_ns)
{
	struct frame_head head = lane->head;

	if (link->is_given_up || lane->held_bytes + size_bytes > link->buffer_bytes) {
		lane->lost_bytes += size_bytes;
		return;
	}
	queue_loss(link, lane);
	head.kind = FRAME_DATA;
	head.time_ns = time_ns;
	if (join(lane, bytes, size_bytes) || queue(link, lane, &head, bytes, size_bytes))
		lane->held_bytes += size_bytes;
	else
		lane->lost_bytes += size_bytes;
}

void link_end(struct link *link, struct lane *lane)
{
	struct frame_head head = lane->head;

	queue_loss(link, lane);
	head.kind = FRAME_END;
	if (!link->is_given_up)
		queue(link, lane, &head, NULL, 0);
}

void link_note(struct link *link, const char *text)
{
	size_t size = strlen(text);

	if (!link->is_given_up)
		queue(link, &link->notes, &link->notes.head, text, size < NOTE_MAX_BYTES ? size : NOTE_MAX_BYTES);
}

static void hang_up(struct link *link)
{
	if (link->fd >= 0)
		close(link->fd);
	link->fd = -1;
	link->is_open = false;
	link->wants_write = false;
}

static void forget_tally(struct link *link)
{
	if (link->tally >= 0)
		close(link->tally);
	link->tally = -1;
	link->sent_bytes = 0;
}

/* The connection is gone; a later link_pump() makes another. */
static void come_back(struct link *link, int64_t now_ms)
{
	hang_up(link);
	forget_tally(link);
	link->try_ms = now_ms + link->backoff_ms;
	link->backoff_ms = link->backoff_ms < BACKOFF_MOST_MS / 2 ? 2 * link->backoff_ms : BACKOFF_MOST_MS;
}

/* How much of what we sent is in records, from the worker's tally; 0 where that cannot be read. */
static int64_t taken_bytes(const struct link *link)
{
	uint8_t half, commit[TALLY_COMMIT_BYTES], slot[TALLY_SLOT_BYTES];
	off_t at = TALLY_SLOTS_AT + (off_t)(link->tally_slot * TALLY_SLOT_BYTES);

	if (pread(link->tally, &half, 1, 0) != 1 ||
	    pread(link->tally, commit, sizeof(commit), TALLY_COMMITS_AT + (half & 1) * TALLY_COMMIT_BYTES) !=
		    (ssize_t)sizeof(commit))
		return 0;
	if (frame_count_of(commit + 8) == link->tally_slot)
		return (int64_t)frame_count_of(commit + 16);
	if (pread(link->tally, slot, sizeof(slot), at) != (ssize_t)sizeof(slot))
		return 0;
	return (int64_t)frame_count_of(slot);
}

/* How much of what we sent is not in records yet. */
static uint64_t untaken_bytes(const struct link *link)
{
	int64_t bytes = link->tally >= 0 && !link->is_drained ? (int64_t)link->sent_bytes - taken_bytes(link) : 0;

	return bytes > 0 ? (uint64_t)bytes : 0;
}

/* The worker is dead, or has closed: what it did not make into records nobody else has. */
static void mourn(struct link *link, int64_t now_ms)
{
	link->notes.lost_bytes += untaken_bytes(link);
	come_back(link, now_ms);
}

static void give_up(struct link *link)
{
	for (struct lane *lane = link->first_turn; lane; lane = lane->next_turn) {
		while (lane->first) {
			struct packet *packet = lane->first;

			if (packet->frame[0] == FRAME_DATA)
				lane->lost_bytes += packet->length_bytes;
			if (packet->frame[0] == FRAME_LOST)
				lane->lost_bytes += frame_count_of(packet->frame + FRAME_HEADER_BYTES);
			lane->first = packet->next;
			free(packet);
		}
		lane->last = NULL;
		lane->held_bytes = 0;
	}
	link->first_turn = link->last_turn = NULL;
	link->is_given_up = true;
	link->stuck_ms = -1;
	hang_up(link);
}

int link_connect(const struct sockaddr_un *place)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int error;

	if (fd < 0)
		return -1;
	if (connect(fd, (const struct sockaddr *)place, sizeof(*place)) == 0 &&
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
		/* Whoever listens gets the output of every job: a folder that others can write to is no place for it. */
		if (peer.uid == 0 || peer.uid == geteuid())
			return fd;
		errno = EPERM;
	}
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

static void call(struct link *link, int64_t now_ms)
{
	struct frame_head head = {.kind = FRAME_HELLO};
	uint8_t frame[FRAME_HEADER_BYTES + FIELDS_MAX_BYTES];
	size_t size = link->hello.used_bytes;

	frame_header(frame, &head, (uint32_t)size);
	memcpy(frame + FRAME_HEADER_BYTES, link->hello.bytes, size);
	link->fd = link_connect(&link->place);
	if (link->fd < 0 || send(link->fd, frame, FRAME_HEADER_BYTES + size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		come_back(link, now_ms);
}

static void welcome(struct link *link, const struct answer *answer, int64_t now_ms)
{
	link->code = answer->code;
	if (answer->code == ANSWER_YES) {
		if (answer->buffer_bytes >= COPY_BYTES && answer->buffer_bytes <= STREAM_BUFFER_MOST_BYTES)
			link->buffer_bytes = answer->buffer_bytes;
		link->is_open = true;
		link->has_asked = link->is_drained = false;
		link->backoff_ms = BACKOFF_FIRST_MS;
		queue_loss(link, &link->notes);
	} else if (answer->code == ANSWER_TOO_MANY || answer->code == ANSWER_CANNOT) {
		come_back(link, now_ms);
	} else {
		give_up(link);
	}
}

/* After a send() that failed. ENOBUFS, ENOMEM: poll() would call that writable. The worker lives and takes us again. */
static void disconnect(struct link *link, int64_t now_ms)
{
	if (errno == EPIPE || errno == ECONNRESET)
		mourn(link, now_ms);
	else
		come_back(link, now_ms);
}

/* One packet, and the file descriptor that came with it, -1 none. */
static ssize_t receive(int from, uint8_t *packet, size_t size_bytes, int *fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = packet, .iov_len = size_bytes};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	ssize_t size = recvmsg(from, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = size >= 0 ? CMSG_FIRSTHDR(&message) : NULL;

	*fd = -1;
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
	    header->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(header), sizeof(int));
	return size;
}

static void read_answers(struct link *link, int64_t now_ms)
{
	uint8_t packet[FRAME_HEADER_BYTES + FIELDS_MAX_BYTES];

	while (link->fd >= 0) {
		int fd;
		ssize_t size = receive(link->fd, packet, sizeof(packet), &fd);
		struct answer answer;

		if (size < 0 && errno == EINTR)
			continue;
		if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (size <= 0 || (size_t)size > sizeof(packet)) {
			mourn(link, now_ms);
		} else if (frame_answer(packet, (size_t)size, &answer)) {
			if (link->tally < 0 && answer.tally_slot < TAPS_MOST_COUNT) {
				link->tally = fd;
				link->tally_slot = answer.tally_slot;
				fd = -1;
			}
			welcome(link, &answer, now_ms);
		} else if (packet[0] == FRAME_DRAINED) {
			link->is_drained = link->has_asked;
		}
		if (fd >= 0)
			close(fd);
	}
}

/* All is sent and the step is over: asks whether all of it was taken. */
static void ask_drained(struct link *link, int64_t now_ms)
{
	struct frame_head head = {.kind = FRAME_DRAIN};
	uint8_t frame[FRAME_HEADER_BYTES];

	if (!link->is_ending || !link->sent_bytes || link->has_asked)
		return;
	frame_header(frame, &head, 0);
	if (send(link->fd, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
		link->has_asked = true;
	else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
		link->wants_write = true;
	else
		disconnect(link, now_ms);
}

/* Sends frames, a lane after the other, while the socket takes them; whether it took any. */
static bool send_frames(struct link *link, int64_t now_ms)
{
	bool has_sent = false;

	link->wants_write = false;
	while (link->first_turn) {
		struct lane *lane = link->first_turn;
		struct packet *packet = lane->first;
		ssize_t sent = send(link->fd, packet->frame, FRAME_HEADER_BYTES + packet->length_bytes,
				    MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			link->wants_write = true;
			return has_sent;
		}
		if (sent < 0) {
			disconnect(link, now_ms);
			return has_sent;
		}
		has_sent = true;
		if (packet->frame[0] == FRAME_DATA) {
			lane->held_bytes -= packet->length_bytes;
			link->sent_bytes += packet->length_bytes;
		} else if (packet->frame[0] == FRAME_LOST) {
			link->sent_bytes += frame_count_of(packet->frame + FRAME_HEADER_BYTES);
		}
		lane->first = packet->next;
		if (!lane->first)
			lane->last = NULL;
		free(packet);
		link->first_turn = lane->next_turn;
		if (!link->first_turn)
			link->last_turn = NULL;
		if (lane->first)
			take_turn(link, lane);
	}
	ask_drained(link, now_ms);
	return has_sent;
}

static bool holds_the_job(const struct link *link)
{
	if (link->is_ending)
		return link->fd >= 0 && !link_is_idle(link);
	for (const struct lane *lane = link->first_turn; link->is_open && lane; lane = lane->next_turn)
		if (link_room(link, lane) == 0)
			return true;
	return false;
}

/* Counts the time in which the relay takes nothing and the job waits for it. */
static void reckon(struct link *link, int64_t now_ms, bool has_sent)
{
	bool holds = holds_the_job(link);

	if (link->stuck_ms >= 0 && (has_sent || !holds)) {
		int64_t gap_ms = now_ms - link->stuck_ms;

		link->stuck_ms = -1;
		if (gap_ms > TAP_HUNG_GAP_MS)
			link->hung_left_ms -= gap_ms;
	}
	if (holds && link->stuck_ms < 0)
		link->stuck_ms = now_ms;
	link->look_ms = now_ms + TAP_HUNG_LOOK_MS;
	if (link->hung_left_ms <= 0 || (link->stuck_ms >= 0 && now_ms - link->stuck_ms >= link->hung_left_ms))
		give_up(link);
}

void link_pump(struct link *link, int64_t now_ms)
{
	bool has_sent = false;

	if (link->is_given_up)
		return;
	if (link->fd < 0 && now_ms >= link->try_ms)
		call(link, now_ms);
	read_answers(link, now_ms);
	if (link->is_open)
		has_sent = send_frames(link, now_ms);
	if (!link->is_given_up)
		reckon(link, now_ms, has_sent);
}

int64_t link_next_ms(const struct link *link)
{
	int64_t next_ms = NEVER_MS;

	if (link->is_given_up)
		return NEVER_MS;
	if (link->stuck_ms >= 0)
		next_ms = link->stuck_ms + link->hung_left_ms;
	/* The kernel calls a socket writable when three quarters of it are free (net/unix/af_unix.c unix_writable()): to
	 * one with three long frames, when all are read. A worker that takes one now and then must not look hung. */
	if (link->stuck_ms >= 0 && link->look_ms < next_ms)
		next_ms = link->look_ms;
	if (link->fd < 0 && link->try_ms < next_ms)
		next_ms = link->try_ms;
	return next_ms;
}

void link_expect_end(struct link *link)
{
	link->is_ending = true;
	if (link->fd < 0)
		link->try_ms = 0;
}

bool link_is_idle(const struct link *link)
{
	if (link->is_given_up || (link->fd < 0 && link->try_ms > 0))
		return true;
	return !link->first_turn && (link->is_drained || !link->sent_bytes);
}

void link_close(struct link *link)
{
	struct frame_head head = {.kind = FRAME_BYE};
	uint8_t frame[FRAME_HEADER_BYTES];

	frame_header(frame, &head, 0);
	if (link->is_open && !link->first_turn)
		/* Not taken: the worker sees the end of the connection all the same. */
		(void)!send(link->fd, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
	give_up(link);
	/* One that hung, and was given up, reads on what it has got when it comes to itself; not if it has been killed. */
	if (link->tally >= 0 && flock(link->tally, LOCK_SH | LOCK_NB) == 0)
		link->notes.lost_bytes += untaken_bytes(link);
	else
		link->left_bytes = untaken_bytes(link);
	forget_tally(link);
}
