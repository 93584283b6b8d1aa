// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What slurmstepd does with the copier, without slurmstepd, so that sanitizers and valgrind can look at it:
 *     step SOCKET JOB_ID TASKS FOLDER COMMAND...
 * Task i runs COMMAND i, its stdout in FOLDER/f.i, its stderr in a pipe that goes to FOLDER/err.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copier.h"

static void log_line(const char *sentence)
{
	fprintf(stderr, "log: %s\n", sentence);
}

static void become_task(struct copier *copier, int task, int start, int end, const char *folder, char *argv[])
{
	char text[256], name[16];
	int file;

	snprintf(text, sizeof(text), "%s/f.%d", folder, task);
	file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (file < 0 || dup2(file, 1) < 0 || dup2(end, 2) < 0 || read(start, text, 1) < 0)
		_exit(99);
	copier_adopt(copier, (uint32_t)task, (uint32_t)task + 100);
	snprintf(name, sizeof(name), "%d", task);
	for (int i = 0; argv[i]; i++)
		if (!argv[i + 1])
			argv[i] = name; /* the last word is a place for it */
	execvp(argv[0], argv);
	_exit(98);
}

int main(int argc, char *argv[])
{
	struct fields hello = {0};
	int count, start[2], end[2], failures = 0;
	struct copier *copier;
	pid_t pids[256], reader;
	char path[256];

	if (argc < 6 || (count = atoi(argv[3])) > 256 || pipe2(start, O_CLOEXEC) || pipe2(end, O_CLOEXEC))
		return 2;
	reader = fork();
	if (reader == 0) {
		snprintf(path, sizeof(path), "%s/err", argv[4]);
		dup2(end[0], 0);
		dup2(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), 1);
		execlp("cat", "cat", (char *)NULL);
		_exit(97);
	}
	fields_add(&hello, "job_id", argv[2]);
	fields_add(&hello, "step_id", "0");
	fields_add(&hello, "whole_step", "1");
	copier = copier_start(argv[1], &hello, (uint32_t)count, false, log_line);
	if (!copier)
		return 3;
	for (int task = 0; task < count; task++) {
		pids[task] = fork();
		if (pids[task] == 0 && close(start[1]) == 0)
			become_task(copier, task, start[0], end[1], argv[4], argv + 5);
	}
	close(start[1]);
	close(start[0]);
	close(end[0]);
	close(end[1]);
	for (int left = count; left; left--) {
		int status, task = 0;
		pid_t pid = wait(&status);

		if (pid == reader) {
			left++;
			continue;
		}
		while (task < count && pids[task] != pid)
			task++;
		failures += status != 0;
		copier_drain(copier, (uint32_t)task);
		snprintf(path, sizeof(path), "%s/f.%d", argv[4], task);
		struct stat state;

		printf("%d %lld\n", task, stat(path, &state) ? -1LL : (long long)state.st_size);
	}
	copier_finish(copier);
	waitpid(reader, NULL, 0);
	return failures ? 1 : 0;
}
