// SPDX-License-Identifier: GPL-2.0-or-later
#include "handover.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"

enum state { WAITING, TAKEN, REFUSED };

struct told {
	uint32_t local, global;
	uint8_t is_unbuffered, count, streams[2];
};

bool handover_init(struct handover *handover, uint32_t task_count)
{
	struct timeval most = {.tv_usec = HANDOVER_MS * 1000};
	int ends[2];

	memset(handover, 0, sizeof(*handover));
	handover->ours = handover->tasks = -1;
	if (!task_count || task_count > TASKS_MOST_COUNT || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return false;
	handover->ours = ends[0];
	handover->tasks = ends[1];
	handover->task_count = task_count;
	handover->states = mmap(NULL, task_count * sizeof(uint32_t), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (handover->states == MAP_FAILED)
		handover->states = NULL;
	if (!handover->states || setsockopt(ends[1], SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most))) {
		handover_close(handover);
		return false;
	}
	return true;
}

/* A terminal of the user's with the settings of the one at fd. openpty(3) is not for this: before glibc 2.33 it looks
 * at the real uid, and it may start a program. */
static bool make_pty(int fd, int *master, int *slave)
{
	struct termios settings;
	struct winsize size;
	unsigned int number;
	int unlocked = 0;
	char path[32];

	*slave = -1;
	*master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (*master < 0)
		return false;
	if (ioctl(*master, TIOCSPTLCK, &unlocked) == 0 && ioctl(*master, TIOCGPTN, &number) == 0) {
		snprintf(path, sizeof(path), "/dev/pts/%u", number);
		*slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	}
	if (*slave >= 0 && tcgetattr(fd, &settings) == 0 && tcsetattr(*slave, TCSANOW, &settings) == 0) {
		if (ioctl(fd, TIOCGWINSZ, &size) == 0)
			ioctl(*slave, TIOCSWINSZ, &size);
		return true;
	}
	if (*slave >= 0)
		close(*slave);
	close(*master);
	return false;
}

static bool make_pipe(int *source, int *end)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return false;
	/* Each end has flags of its own: the task's stays as every pipe is. */
	if (fcntl(ends[0], F_SETFL, O_NONBLOCK)) {
		close(ends[0]);
		close(ends[1]);
		return false;
	}
	*source = ends[0];
	*end = ends[1];
	return true;
}

static bool tell(const struct handover *handover, const struct told *told, const int *fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec part = {.iov_base = (void *)told, .iov_len = sizeof(*told)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes};
	size_t size = 2 * (size_t)told->count * sizeof(int);
	struct cmsghdr *header;

	memset(&control, 0, sizeof(control));
	message.msg_controllen = CMSG_SPACE(size);
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(header), fds, size);
	return sendmsg(handover->tasks, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(*told);
}

/* Whether slurmstepd took the streams, in time. */
static bool is_taken(uint32_t *state)
{
	struct timespec start, now;
	uint32_t expected = WAITING;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int64_t left_ms = HANDOVER_MS; left_ms > 0;) {
		struct timespec wait = {.tv_sec = left_ms / 1000, .tv_nsec = left_ms % 1000 * 1000000};

		if (__atomic_load_n(state, __ATOMIC_ACQUIRE) != WAITING)
			break;
		syscall(SYS_futex, state, FUTEX_WAIT, WAITING, &wait, NULL, 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
		left_ms = HANDOVER_MS - ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000);
	}
	__atomic_compare_exchange_n(state, &expected, REFUSED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return __atomic_load_n(state, __ATOMIC_ACQUIRE) == TAKEN;
}

bool handover_give(const struct handover *handover, uint32_t local, uint32_t global)
{
	struct told told = {.local = local, .global = global};
	int fds[4], ends[2], count = 0;
	bool is_given = false;

	if (local >= handover->task_count)
		return false;
	/* srun --pty: one terminal for all three, and its size and signals come through slurmstepd. Left alone. */
	if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
		return false;
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
		bool is_terminal = isatty(fd);

		if (fcntl(fd, F_GETFD) < 0)
			continue;
		if (!(is_terminal ? make_pty(fd, &fds[2 * count], &ends[count])
				  : make_pipe(&fds[2 * count], &ends[count])))
			continue;
		fds[2 * count + 1] = fd;
		told.streams[count++] = (uint8_t)fd;
		/* Only srun --unbuffered makes stdout a terminal of its own. */
		told.is_unbuffered |= is_terminal && fd == STDOUT_FILENO;
	}
	told.count = (uint8_t)count;
	if (count && tell(handover, &told, fds))
		is_given = is_taken(&handover->states[local]);
	for (int i = 0; i < count; i++) {
		if (is_given)
			dup2(ends[i], told.streams[i]);
		close(ends[i]);
		close(fds[2 * i]);
	}
	return is_given;
}

int handover_take(const struct handover *handover, struct taken_task *task)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct told told;
	struct iovec part = {.iov_base = &told, .iov_len = sizeof(told)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *header;
	uint32_t expected = WAITING;
	int fds[4] = {-1, -1, -1, -1}, count = 0;
	bool is_whole;
	ssize_t size = recvmsg(handover->ours, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (size < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
		count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(header), (size_t)count * sizeof(int));
	}
	if (size == 0)
		return -1;
	/* MSG_CTRUNC: slurmstepd has no file descriptor left for one of them. */
	is_whole = size == (ssize_t)sizeof(told) && !(message.msg_flags & MSG_CTRUNC) && told.count <= 2 &&
		   count == 2 * told.count && told.local < handover->task_count;
	if (is_whole) {
		uint32_t *state = &handover->states[told.local];

		is_whole = __atomic_compare_exchange_n(state, &expected, TAKEN, false, __ATOMIC_ACQ_REL,
						       __ATOMIC_ACQUIRE);
		syscall(SYS_futex, state, FUTEX_WAKE, 1, NULL, NULL, 0);
	} else if (size == (ssize_t)sizeof(told) && told.local < handover->task_count) {
		__atomic_store_n(&handover->states[told.local], REFUSED, __ATOMIC_RELEASE);
		syscall(SYS_futex, &handover->states[told.local], FUTEX_WAKE, 1, NULL, NULL, 0);
	}
	if (!is_whole) {
		for (int i = 0; i < count; i++)
			close(fds[i]);
		return 0;
	}
	task->local = told.local;
	task->global = told.global;
	task->is_unbuffered = told.is_unbuffered;
	task->count = told.count;
	for (int i = 0; i < 2; i++)
		task->streams[i] = (struct taken_stream){
			.source = fds[2 * i], .original = fds[2 * i + 1], .stream = told.streams[i]};
	return 1;
}

void handover_close_ours(struct handover *handover)
{
	if (handover->ours >= 0)
		close(handover->ours);
	handover->ours = -1;
}

void handover_close(struct handover *handover)
{
	if (handover->tasks >= 0)
		close(handover->tasks);
	handover->tasks = -1;
	handover_close_ours(handover);
	if (handover->states)
		munmap(handover->states, handover->task_count * sizeof(uint32_t));
	handover->states = NULL;
}
