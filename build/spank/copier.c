// SPDX-License-Identifier: GPL-2.0-or-later
#include "copier.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVERY_TASK UINT32_MAX
#define STACK_BYTES (256 * 1024)

/* rest: read and not yet written, rest_bytes of it from rest_at on; the kernel gives its pages when they are used.
 * is_done: the task's end is closed, or ours. is_waiting_file: its original is never busy, a write to it takes as long
 * as it takes. is_asked: to be read until nothing is there, left_bytes at most. */
struct stream {
	struct lane lane;
	int source, original;
	size_t rest_bytes, rest_at, left_bytes;
	bool is_done, is_waiting_file, is_asked;
	uint8_t rest[COPY_BYTES];
};

struct copier {
	struct link link;
	struct handover handover;
	void (*log)(const char *sentence);
	bool is_batch;
	/* The thread's own. Two streams for each task of the step; those that tasks have given come first. */
	struct stream *streams;
	size_t stream_count;
	struct pollfd *polls;
	uint8_t *buffer;
	int64_t asked_ms, srun_left_ms;
	/* Shared, under the lock: which task is to be drained, 0 for none, else its number + 1. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t has_news;
	int wake;
	uint64_t asked;
	bool is_finishing, is_over, is_late, is_told;
	/* Set by the thread while it is in a system call that ends when a file's server takes what it is given. */
	atomic_bool is_held;
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint64_t time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static const char *name_of(const struct stream *stream)
{
	return stream->lane.head.stream == STREAM_STDOUT ? "stdout" : "stderr";
}

static void close_source(struct copier *copier, struct stream *stream)
{
	if (stream->is_done)
		return;
	close(stream->source);
	stream->is_done = true;
	stream->is_asked = false;
	link_end(&copier->link, &stream->lane);
}

/* Nothing comes any more and nothing is left to write: whoever reads the original sees its end. */
static void close_original(struct copier *copier, struct stream *stream)
{
	if (stream->original >= 0 && stream->is_done && !stream->rest_bytes) {
		atomic_store(&copier->is_held, true);
		close(stream->original);
		atomic_store(&copier->is_held, false);
		stream->original = -1;
	}
}

static void fail(struct copier *copier, struct stream *stream, int error)
{
	char text[NOTE_MAX_BYTES];

	/* As relay_io does: this stream ends here, the task's next write to it is EPIPE; the others go on. */
	if (error != EPIPE) {
		snprintf(text, sizeof(text), "task %u %s: cannot write its destination: %s",
			 stream->lane.head.task_global, name_of(stream), strerror(error));
		link_note(&copier->link, text);
		copier->log(text);
	}
	close_source(copier, stream);
}

/* How much the original took: all of it, less where it is busy; -1 with errno where it fails. */
static ssize_t write_original(struct copier *copier, const struct stream *stream, const uint8_t *bytes, size_t size)
{
	size_t written = 0;

	while (written < size) {
		ssize_t now;

		atomic_store(&copier->is_held, true);
		now = write(stream->original, bytes + written, size - written);
		atomic_store(&copier->is_held, false);
		if (now >= 0)
			written += (size_t)now;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			return -1;
	}
	return (ssize_t)written;
}

static void write_rest(struct copier *copier, struct stream *stream)
{
	ssize_t written = write_original(copier, stream, stream->rest + stream->rest_at, stream->rest_bytes - stream->rest_at);

	if (written < 0)
		fail(copier, stream, errno);
	else
		stream->rest_at += (size_t)written;
	if (written < 0 || stream->rest_at == stream->rest_bytes)
		stream->rest_bytes = 0;
	close_original(copier, stream);
}

/* Copies what one read gives. */
static void copy(struct copier *copier, struct stream *stream)
{
	size_t room = link_room(&copier->link, &stream->lane);
	ssize_t size, written;

	if (stream->is_done || stream->rest_bytes || !room)
		return;
	size = read(stream->source, copier->buffer, room);
	if (size < 0 && errno == EINTR)
		return;
	if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		stream->is_asked = false;
		return;
	}
	if (size <= 0) { /* EIO: how a pty says that its other end is closed */
		close_source(copier, stream);
		close_original(copier, stream);
		return;
	}
	written = write_original(copier, stream, copier->buffer, (size_t)size);
	link_offer(&copier->link, &stream->lane, copier->buffer, (size_t)size, time_ns());
	if (written < 0) {
		fail(copier, stream, errno);
	} else if (written < size) {
		stream->rest_bytes = (size_t)(size - written);
		stream->rest_at = 0;
		memcpy(stream->rest, copier->buffer + written, stream->rest_bytes);
	}
	if (stream->is_asked && stream->left_bytes <= (size_t)size)
		stream->is_asked = false; /* others still write; what the task itself left is through */
	else if (stream->is_asked)
		stream->left_bytes -= (size_t)size;
	close_original(copier, stream);
}

/* The original so that a write to it never waits: a pipe or terminal is opened anew, since its flags are shared with
 * others. Regular files cannot be had that way; a write there takes what the task's own would have taken. */
static int without_waiting(int original, bool *is_waiting_file)
{
	struct stat status;
	char path[64];
	int anew = -1;

	if (fstat(original, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", original);
		anew = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	}
	*is_waiting_file = anew < 0;
	if (anew < 0)
		return original;
	close(original);
	return anew;
}

static void add(struct copier *copier, const struct taken_task *task, const struct taken_stream *taken)
{
	struct stream *stream = &copier->streams[copier->stream_count++];

	stream->source = taken->source;
	stream->original = without_waiting(taken->original, &stream->is_waiting_file);
	stream->lane.head = (struct frame_head){.stream = taken->stream,
						.flags = task->is_unbuffered ? FLAG_UNBUFFERED : 0,
						.task_local = task->local,
						.task_global = task->global};
}

static void take_tasks(struct copier *copier)
{
	struct taken_task task;
	int got;

	while ((got = handover_take(&copier->handover, &task)) > 0)
		for (int i = 0; i < task.count; i++)
			add(copier, &task, &task.streams[i]);
	if (got < 0)
		handover_close_ours(&copier->handover);
}

static bool is_of(const struct stream *stream, uint32_t task)
{
	return task == EVERY_TASK || stream->lane.head.task_local == task;
}

/* Whether nobody but us waits for this stream to be whole. For what goes to srun slurmstepd waits itself. */
static bool is_waited_for(const struct copier *copier, const struct stream *stream)
{
	return copier->is_batch || stream->is_waiting_file;
}

static void ask(struct copier *copier, uint32_t task)
{
	copier->asked_ms = now_ms();
	for (size_t i = 0; i < copier->stream_count; i++) {
		struct stream *stream = &copier->streams[i];

		if (is_of(stream, task) && !stream->is_done) {
			stream->is_asked = true;
			stream->left_bytes = PIPE_MOST_BYTES;
		}
	}
}

static bool is_drained(const struct copier *copier, uint32_t task)
{
	for (size_t i = 0; i < copier->stream_count; i++) {
		const struct stream *stream = &copier->streams[i];

		if (is_of(stream, task) && is_waited_for(copier, stream) && (stream->is_asked || stream->rest_bytes))
			return false;
	}
	return true;
}

/* Whether srun has yet to get what this task left. When a task was killed, srun stops listening once it is told so
 * (step_launch.c, task_exit_signal): what is on its way must be ahead of that, as it would be without us. */
static bool is_on_its_way(const struct copier *copier, uint32_t task)
{
	for (size_t i = 0; i < copier->stream_count; i++) {
		const struct stream *stream = &copier->streams[i];
		int waiting_bytes = 0;

		if (!is_of(stream, task) || is_waited_for(copier, stream) || stream->original < 0)
			continue;
		ioctl(stream->original, FIONREAD, &waiting_bytes);
		if (stream->is_asked || stream->rest_bytes || waiting_bytes)
			return true;
	}
	return false;
}

/* What slurmstepd's own thread wants; says whether it is new. */
static bool heed(struct copier *copier, uint64_t *asked)
{
	uint64_t count, before = *asked;

	if (read(copier->wake, &count, sizeof(count)) < 0 && errno != EAGAIN && errno != EINTR)
		return false;
	pthread_mutex_lock(&copier->lock);
	*asked = copier->asked;
	pthread_mutex_unlock(&copier->lock);
	return *asked && *asked != before;
}

static void settle(struct copier *copier, uint64_t *asked)
{
	uint32_t task = (uint32_t)(*asked - 1);

	if (!*asked || !is_drained(copier, task))
		return;
	if (copier->srun_left_ms && is_on_its_way(copier, task)) {
		if (now_ms() - copier->asked_ms < copier->srun_left_ms)
			return;
		copier->srun_left_ms = 0; /* it is stopped, or slow: not waited for again */
	}
	*asked = 0;
	pthread_mutex_lock(&copier->lock);
	copier->asked = 0;
	pthread_cond_signal(&copier->has_news);
	pthread_mutex_unlock(&copier->lock);
}

static bool is_finishing(struct copier *copier)
{
	bool is_it;

	pthread_mutex_lock(&copier->lock);
	is_it = copier->is_finishing;
	pthread_mutex_unlock(&copier->lock);
	return is_it;
}

/* One look at everything; what is ready is in polls: wake, tasks, link, then source and original of each stream. */
static void look(struct copier *copier, bool is_asked)
{
	int64_t next_ms = link_next_ms(&copier->link), left_ms = -1;
	struct pollfd *polls = copier->polls;

	polls[0] = (struct pollfd){.fd = copier->wake, .events = POLLIN};
	polls[1] = (struct pollfd){.fd = copier->handover.ours, .events = POLLIN};
	polls[2] = (struct pollfd){.fd = copier->link.fd, .events = POLLIN};
	if (copier->link.wants_write)
		polls[2].events |= POLLOUT;
	for (size_t i = 0; i < copier->stream_count; i++) {
		struct stream *stream = &copier->streams[i];
		bool reads = !stream->is_done && !stream->rest_bytes && link_room(&copier->link, &stream->lane);

		if (reads && stream->is_asked)
			next_ms = 0; /* whether there is nothing is for read() to say */
		/* -1 and not "no events": a pipe without writers says POLLHUP in any case. */
		polls[3 + 2 * i] = (struct pollfd){.fd = reads ? stream->source : -1, .events = POLLIN};
		polls[4 + 2 * i] = (struct pollfd){.fd = stream->rest_bytes ? stream->original : -1, .events = POLLOUT};
	}
	if (next_ms != NEVER_MS) {
		left_ms = next_ms - now_ms();
		left_ms = left_ms < 0 ? 0 : left_ms > 60000 ? 60000 : left_ms + 1;
	}
	if (is_asked && left_ms != 0)
		left_ms = 1; /* nothing tells when srun's pipe is empty */
	if (poll(polls, 3 + 2 * copier->stream_count, (int)left_ms) < 0)
		for (size_t i = 0; i < 3 + 2 * copier->stream_count; i++)
			polls[i].revents = 0; /* EINTR */
}

static void serve(struct copier *copier)
{
	uint64_t asked = 0;

	while (true) {
		size_t count = copier->stream_count;

		link_pump(&copier->link, now_ms());
		settle(copier, &asked);
		if (!asked && is_finishing(copier))
			return;
		look(copier, asked != 0);
		if (copier->polls[1].revents)
			take_tasks(copier);
		if (copier->polls[0].revents && heed(copier, &asked))
			ask(copier, (uint32_t)(asked - 1));
		for (size_t i = 0; i < copier->stream_count; i++) {
			struct stream *stream = &copier->streams[i];

			if (i < count && copier->polls[4 + 2 * i].revents)
				write_rest(copier, stream);
			if (stream->is_asked || (i < count && copier->polls[3 + 2 * i].revents))
				copy(copier, stream);
		}
	}
}

/* Sends what waits, within the drain limit and what is left of the time that the relay may hang. */
static void end_relay(struct copier *copier)
{
	int64_t end_ms = now_ms() + TAP_END_MS;
	char text[128];

	for (size_t i = 0; i < copier->stream_count; i++)
		close_source(copier, &copier->streams[i]);
	link_expect_end(&copier->link);
	while (true) {
		struct pollfd ready = {.events = POLLIN};
		int64_t now = now_ms(), next_ms;

		link_pump(&copier->link, now);
		if (link_is_idle(&copier->link) || now >= end_ms)
			break;
		next_ms = link_next_ms(&copier->link);
		ready.fd = copier->link.fd;
		if (copier->link.wants_write)
			ready.events |= POLLOUT;
		poll(&ready, 1, (int)((next_ms < end_ms ? next_ms : end_ms) - now) + 1);
	}
	link_close(&copier->link);
	if (copier->link.notes.lost_bytes) {
		snprintf(text, sizeof(text), "relay lost %llu bytes that a worker held when it died",
			 (unsigned long long)copier->link.notes.lost_bytes);
		copier->log(text);
	}
	if (copier->link.left_bytes) {
		snprintf(text, sizeof(text), "relay left %llu bytes in a worker that hung, they are records only if it goes on",
			 (unsigned long long)copier->link.left_bytes);
		copier->log(text);
	}
	for (size_t i = 0; i < copier->stream_count; i++) {
		struct stream *stream = &copier->streams[i];

		if (!stream->lane.lost_bytes)
			continue;
		snprintf(text, sizeof(text), "relay lost %llu bytes of task %u %s before they were records",
			 (unsigned long long)stream->lane.lost_bytes, stream->lane.head.task_global, name_of(stream));
		copier->log(text);
	}
}

static void *run(void *argument)
{
	struct copier *copier = argument;

	serve(copier);
	end_relay(copier);
	pthread_mutex_lock(&copier->lock);
	copier->is_over = true;
	pthread_cond_signal(&copier->has_news);
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

static void release(struct copier *copier)
{
	for (size_t i = 0; i < copier->stream_count; i++)
		if (copier->streams[i].original >= 0)
			close(copier->streams[i].original);
	link_close(&copier->link);
	handover_close(&copier->handover);
	if (copier->wake >= 0)
		close(copier->wake);
	free(copier->streams);
	free(copier->polls);
	free(copier->buffer);
	pthread_cond_destroy(&copier->has_news);
	pthread_mutex_destroy(&copier->lock);
	free(copier);
}

static bool start_thread(struct copier *copier)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	bool is_started;

	/* Signals are slurmstepd's affair; SIGPIPE and SIGXFSZ must be errors of write() here. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	is_started = pthread_create(&copier->thread, &attributes, run, copier) == 0;
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return is_started;
}

/* Whether a worker answers yes in time. What is waited is part of what the relay may hang. */
static bool is_welcome(struct link *link)
{
	int64_t start_ms = now_ms();
	int64_t left_ms = FIRST_ANSWER_MS;

	link_pump(link, start_ms);
	while (!link->is_open && link->fd >= 0 && left_ms > 0) {
		struct pollfd answer = {.fd = link->fd, .events = POLLIN};

		poll(&answer, 1, (int)left_ms);
		link_pump(link, now_ms());
		left_ms = FIRST_ANSWER_MS - (now_ms() - start_ms);
	}
	link->hung_left_ms -= now_ms() - start_ms;
	return link->is_open;
}

struct copier *copier_start(const char *path, const struct fields *hello, uint32_t task_count, bool is_batch,
			    void (*log)(const char *sentence))
{
	struct copier *copier = calloc(1, sizeof(*copier));
	pthread_condattr_t attributes;

	if (!copier)
		return NULL;
	copier->handover.ours = copier->handover.tasks = copier->wake = -1;
	copier->log = log;
	copier->is_batch = is_batch;
	copier->srun_left_ms = SRUN_MS;
	pthread_mutex_init(&copier->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&copier->has_news, &attributes);
	pthread_condattr_destroy(&attributes);
	if (!link_init(&copier->link, path)) {
		log("relay: the path of the daemon's socket is too long, the step is not relayed");
		release(copier);
		return NULL;
	}
	copier->link.hello = *hello;
	if (!is_welcome(&copier->link)) {
		if (copier->link.code != ANSWER_NO && copier->link.code != ANSWER_UNKNOWN_JOB)
			log("relay: the node daemon does not take the step, it is not relayed");
		release(copier);
		return NULL;
	}
	copier->streams = calloc(2 * (size_t)task_count, sizeof(*copier->streams));
	copier->polls = calloc(3 + 4 * (size_t)task_count, sizeof(*copier->polls));
	copier->buffer = malloc(COPY_BYTES);
	copier->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (!copier->streams || !copier->polls || !copier->buffer || copier->wake < 0 ||
	    !handover_init(&copier->handover, task_count) || !start_thread(copier)) {
		log("relay: no memory, file descriptor or thread, the step is not relayed");
		release(copier);
		return NULL;
	}
	return copier;
}

void copier_adopt(const struct copier *copier, uint32_t local, uint32_t global)
{
	handover_give(&copier->handover, local, global);
}

static void wake(struct copier *copier)
{
	uint64_t one = 1;

	(void)!write(copier->wake, &one, sizeof(one));
}

static struct timespec from_now(int64_t ms)
{
	int64_t end_ms = now_ms() + ms;

	return (struct timespec){.tv_sec = end_ms / 1000, .tv_nsec = end_ms % 1000 * 1000000};
}

/* Waits for news, under the lock; false when there was none in time. In time is whatever a hung server takes: the task
 * itself would be held as long, and what it left in its pipe would be lost. */
static bool await(struct copier *copier, struct timespec *end, int64_t most_ms)
{
	while (pthread_cond_timedwait(&copier->has_news, &copier->lock, end) == ETIMEDOUT) {
		if (!atomic_load(&copier->is_held))
			return false;
		if (!copier->is_told)
			copier->log("relay: a file of the step takes nothing, the step waits for it as its task would");
		copier->is_told = true;
		*end = from_now(most_ms);
	}
	return true;
}

/* Asks the thread to drain and waits for it. After the first wait that was too long no other is made. */
static void drain(struct copier *copier, uint32_t task)
{
	struct timespec end = from_now(ORIGINAL_MOST_MS);

	pthread_mutex_lock(&copier->lock);
	if (!copier->is_late) {
		copier->asked = (uint64_t)task + 1;
		wake(copier);
		while (copier->asked && !copier->is_late)
			copier->is_late = !await(copier, &end, ORIGINAL_MOST_MS);
	}
	pthread_mutex_unlock(&copier->lock);
}

void copier_drain(struct copier *copier, uint32_t local)
{
	drain(copier, local);
}

void copier_finish(struct copier *copier)
{
	struct timespec end;

	drain(copier, EVERY_TASK);
	end = from_now(TAP_END_MS + 1000);
	pthread_mutex_lock(&copier->lock);
	copier->is_finishing = true;
	copier->asked = 0;
	wake(copier);
	while (!copier->is_over && await(copier, &end, TAP_END_MS + 1000))
		;
	if (!copier->is_over) {
		/* Nothing lets it run, or it sits in a call that never should take long. It ends with slurmstepd, which
		 * ends without it: this file is linked to stay in memory (-z nodelete). */
		pthread_mutex_unlock(&copier->lock);
		pthread_detach(copier->thread);
		return;
	}
	pthread_mutex_unlock(&copier->lock);
	pthread_join(copier->thread, NULL);
	release(copier);
}
