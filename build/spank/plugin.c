// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The relay's SPANK plugin: in slurmstepd a tap (copier.h), in slurmd's prolog and epilog a hook that tells the node
 * daemon of jobs. Whether a job is relayed is settled by the daemon at the job's start and kept there; a step only asks.
 *
 *     optional relay_io.so [folder=/run/eessi-relay] [events=no]
 *
 * folder: where the daemon's sockets are; %n is the node's name, where several slurmd share a host.
 * events=no: the site's Prolog and Epilog call `relay event` instead.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "copier.h"

#define DEFAULT_FOLDER "/run/eessi-relay"
/* slurm.h: from here on step numbers have a meaning of their own; two of them have output. */
#define SPECIAL_STEP_LEAST 0xfffffff0u
#define BATCH_STEP 0xfffffffbu
#define INTERACTIVE_STEP 0xfffffffau

#pragma GCC visibility push(default)
SPANK_PLUGIN(relay_io, 1)
#pragma GCC visibility pop

#define HOOK __attribute__((visibility("default"))) int
#define UNUSED __attribute__((unused))

/* The step that this slurmstepd runs, while it is relayed. */
static struct copier *copier;
/* --relay-io=no, for this step. Yes and default are the same here: the job was settled. */
static bool is_refused;

static void log_info(const char *sentence)
{
	/* Not slurm_error: that would be seen in the job's own stderr. */
	slurm_info("%s", sentence);
}

static int note_wish(UNUSED int value, const char *wish, UNUSED int is_remote)
{
	if (!wish || (strcmp(wish, "yes") && strcmp(wish, "no") && strcmp(wish, "default"))) {
		slurm_error("--relay-io takes yes, no or default");
		return -1;
	}
	is_refused = strcmp(wish, "no") == 0;
	return 0;
}

static struct spank_option relay_io_option = {
	.name = "relay-io",
	.arginfo = "yes|no|default",
	.usage = "relay the job's output to the site's log system, beside where it goes anyway",
	.has_arg = 1,
	.cb = note_wish,
};

static const char *argument(int count, char *arguments[], const char *name, const char *otherwise)
{
	size_t size = strlen(name);

	for (int i = 0; i < count; i++)
		if (strncmp(arguments[i], name, size) == 0 && arguments[i][size] == '=')
			return arguments[i] + size + 1;
	return otherwise;
}

/* The daemon's socket. False: no such path can be. */
static bool control_path(spank_t spank, int count, char *arguments[], char *path, size_t size)
{
	const char *folder = argument(count, arguments, "folder", DEFAULT_FOLDER);
	const char *node = getenv("SLURMD_NODENAME"); /* slurmd's or slurmstepd's own environment, not the job's */
	const char *mark = strstr(folder, "%n");
	char address[256];
	int used;

	/* A slurmstepd has that from 22.05 on. Before, it writes its place in the topology, which ends with its name,
	 * over what the job's environment says (slurmstepd.c, _step_setup). */
	if (!node && spank_getenv(spank, "SLURM_TOPOLOGY_ADDR", address, sizeof(address)) == ESPANK_SUCCESS) {
		const char *last = strrchr(address, '.');

		node = last ? last + 1 : address;
	}
	if (!mark)
		used = snprintf(path, size, "%s/control.sock", folder);
	else if (!node)
		return false;
	else
		used = snprintf(path, size, "%.*s%s%s/control.sock", (int)(mark - folder), folder, node, mark + 2);
	return used > 0 && (size_t)used < size;
}

HOOK slurm_spank_init(spank_t spank, UNUSED int count, UNUSED char *arguments[])
{
	/* In each context that reads or passes on a user's options. */
	if (spank_context() != S_CTX_SLURMD)
		return spank_option_register(spank, &relay_io_option) == ESPANK_SUCCESS ? 0 : -1;
	return 0;
}

HOOK slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[])
{
	uint32_t job_id, step_id, task_count;
	struct fields hello = {0};
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];

	if (spank_context() != S_CTX_REMOTE || is_refused)
		return 0;
	if (spank_get_item(spank, S_JOB_ID, &job_id) || spank_get_item(spank, S_JOB_STEPID, &step_id) ||
	    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &task_count))
		return 0;
	if (step_id >= SPECIAL_STEP_LEAST && step_id != BATCH_STEP && step_id != INTERACTIVE_STEP)
		return 0; /* extern: no output */
	if (!control_path(spank, count, arguments, path, sizeof(path))) {
		log_info("relay: folder= in plugstack.conf gives no path for a socket, the step is not relayed");
		return 0;
	}
	fields_add_number(&hello, "job_id", job_id);
	fields_add_number(&hello, "step_id", step_id);
	fields_add(&hello, "whole_step", "1");
	copier = copier_start(path, &hello, task_count, step_id == BATCH_STEP, log_info);
	return 0;
}

HOOK slurm_spank_task_init(spank_t spank, UNUSED int count, UNUSED char *arguments[])
{
	char number[sizeof("4294967295")];
	uint32_t global;
	int local;

	if (!copier || spank_get_item(spank, S_TASK_ID, &local) || spank_get_item(spank, S_TASK_GLOBAL_ID, &global))
		return 0;
	/* That one begins with 0 in each component of a heterogeneous step. This is the whole step's, as `srun --label`
	 * has it; slurmstepd has just put it there, over whatever the user had (task.c exec_task). */
	if (!spank_getenv(spank, "SLURM_PROCID", number, sizeof(number)))
		global = (uint32_t)strtoul(number, NULL, 10);
	copier_adopt(copier, (uint32_t)local, global);
	return 0;
}

HOOK slurm_spank_task_exit(spank_t spank, UNUSED int count, UNUSED char *arguments[])
{
	int local;

	/* With contain_spank this is a process of its own, which has slurmstepd's memory but a copy of its descriptors
	 * (mgr.c _run_spank_func): what it would open or close here would be so nowhere else. */
	if (copier && !spank_get_item(spank, S_TASK_ID, &local))
		copier_drain(copier, (uint32_t)local);
	return 0;
}

HOOK slurm_spank_exit(UNUSED spank_t spank, UNUSED int count, UNUSED char *arguments[])
{
	if (copier)
		copier_finish(copier);
	copier = NULL;
	return 0;
}

/* Tells the daemon of a job and waits for its answer: job_start must be known before the first step asks. */
static void tell(const char *path, const struct fields *fields)
{
	struct sockaddr_un place = {.sun_family = AF_UNIX};
	struct frame_head head = {.kind = FRAME_EVENT};
	uint8_t frame[FRAME_HEADER_BYTES + FIELDS_MAX_BYTES];
	struct pollfd answer = {.events = POLLIN};
	ssize_t size = -1;

	memcpy(place.sun_path, path, strlen(path) + 1);
	frame_header(frame, &head, (uint32_t)fields->used_bytes);
	memcpy(frame + FRAME_HEADER_BYTES, fields->bytes, fields->used_bytes);
	answer.fd = link_connect(&place);
	if (answer.fd >= 0) {
		size = send(answer.fd, frame, FRAME_HEADER_BYTES + fields->used_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (size >= 0)
			size = poll(&answer, 1, HOOK_ANSWER_MS) == 1 ? recv(answer.fd, frame, sizeof(frame), MSG_DONTWAIT)
								       : -1;
		close(answer.fd);
	}
	if (size <= 0)
		slurm_info("relay: the node daemon does not answer at %s, the job's %s is not told", path,
			   strstr((const char *)fields->bytes, "job_start") ? "start" : "end");
}

static int tell_of_job(spank_t spank, const char *event, const char *wish, int count, char *arguments[])
{
	static const char *const names[][2] = {
		{"cluster", "SLURM_CLUSTER_NAME"},    {"node", "SLURMD_NODENAME"},
		{"user_name", "SLURM_JOB_USER"},      {"partition", "SLURM_JOB_PARTITION"},
		{"account", "SLURM_JOB_ACCOUNT"},     {"sluid", "SLURM_JOB_SLUID"},
		{"restart_count", "SLURM_JOB_RESTART_COUNT"},
	};
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct fields fields = {0};
	uint32_t job_id;
	uid_t uid;

	if (strcmp(argument(count, arguments, "events", "yes"), "no") == 0)
		return 0;
	if (spank_get_item(spank, S_JOB_ID, &job_id) || spank_get_item(spank, S_JOB_UID, &uid) ||
	    !control_path(spank, count, arguments, path, sizeof(path)))
		return 0;
	fields_add(&fields, "event", event);
	fields_add_number(&fields, "job_id", job_id);
	fields_add_number(&fields, "uid", uid);
	if (wish)
		fields_add(&fields, "relay_io", wish);
	/* slurmd's own variables (prep_script_slurmd.c); a user's have SPANK_ before their names there. */
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const char *value = getenv(names[i][1]);

		if (value && *value)
			fields_add(&fields, names[i][0], value);
	}
	tell(path, &fields);
	return 0;
}

HOOK slurm_spank_job_prolog(spank_t spank, int count, char *arguments[])
{
	char *wish = NULL;

	/* slurm_spank_init() does not run here, so neither does the option's callback. */
	if (spank_option_getopt(spank, &relay_io_option, &wish) != ESPANK_SUCCESS || !wish ||
	    (strcmp(wish, "yes") && strcmp(wish, "no")))
		wish = NULL; /* default, or what a forged environment says */
	return tell_of_job(spank, "job_start", wish, count, arguments);
}

HOOK slurm_spank_job_epilog(spank_t spank, int count, char *arguments[])
{
	return tell_of_job(spank, "job_end", NULL, count, arguments);
}
