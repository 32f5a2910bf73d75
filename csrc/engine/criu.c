/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline: CRIU's own dump and restore, pages through image files.
 *
 *   DIR/images/         one dump, read by every branch
 *   DIR/dump.log        DIR/restore-ID.log     only while they are needed
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/text.h"
#include "engine/command.h"
#include "engine/engine.h"
#include "host/carrier.h"
#include "host/copy.h"
#include "host/openfiles.h"
#include "host/spawn.h"
#include "host/trace.h"

#define DUMP_TIMEOUT_MS 300000
#define RESTORE_TIMEOUT_MS 300000
/* The name under which the network namespace goes from source to branch. */
#define NETNS_KEY "bunshin-net"

struct criu_state {
	char *criu;
	char *dir;
	char *images;
};

static int criu_probe(const char *criu, struct bsh_error *err)
{
	if (access(criu, X_OK) < 0)
		return bsh_fail(err, errno, "%s cannot be run; build it with `make criu`", criu);
	return 0;
}

static void criu_drop(void *opaque)
{
	struct criu_state *state = opaque;

	if (!state)
		return;
	free(state->criu);
	free(state->dir);
	free(state->images);
	free(state);
}

static int criu_prepare(const struct bsh_source *src, const char *criu, const char *dir, struct bsh_trace *trace,
	void **ret_state, struct bsh_error *err)
{
	struct criu_state *state;

	(void)src;
	(void)trace;
	state = bsh_alloc(sizeof(*state));
	state->criu = bsh_strdup(criu);
	state->dir = bsh_strdup(dir);
	state->images = bsh_format("%s/images", dir);
	if (mkdir(state->images, 0700) < 0) {
		int rc = bsh_fail(err, errno, "make %s", state->images);

		criu_drop(state);
		return rc;
	}
	*ret_state = state;
	return 0;
}

/* What dump and restore have in common. */
static void add_common(struct bsh_command *command, const struct criu_state *state, const char *log)
{
	bsh_command_add(command, "--no-default-config");
	bsh_command_add(command, "--images-dir=%s", state->images);
	bsh_command_add(command, "--work-dir=%s", state->dir);
	bsh_command_add(command, "--log-file=%s", log);
	bsh_command_add(command, "-v1");
	bsh_command_add(command, "--manage-cgroups=ignore");
	bsh_command_add(command, "--tcp-established");
	bsh_command_add(command, "--file-locks");
	bsh_command_add(command, "--link-remap");
	/* Nothing that it could lock leaves a workspace. */
	bsh_command_add(command, "--network-lock=skip");
}

static int add_dump(struct bsh_command *command, const struct criu_state *state, const struct bsh_source *src,
	struct bsh_error *err)
{
	struct stat netns;

	if (fstat(src->netns_fd, &netns) < 0)
		return bsh_fail(err, errno, "look at the network namespace");
	add_common(command, state, "dump.log");
	bsh_command_add(command, "--tree=%d", src->pid);
	bsh_command_add(command, "--freeze-cgroup=%s", src->freezer);
	bsh_command_add(command, "--leave-running");
	bsh_command_add(command, "--ghost-limit=2147483647");
	bsh_command_add(command, "--external=net[%lu]:%s", (unsigned long)netns.st_ino, NETNS_KEY);
	return 0;
}

/*
 * An open file that lost its name but has another gets a new one for the
 * time of the dump only, so the files must be captured before the dump ends. The
 * command's script tells when, and waits.
 *
 *   dump ... post-dump script: "x" -> DIR/dumped, waits for DIR/captured ... dump ends
 */
struct rendezvous {
	char *script;
	char *dumped_path, *captured_path;
	int dumped, captured;
};

static void rendezvous_release(struct rendezvous *meet)
{
	bsh_close_fd(&meet->dumped);
	bsh_close_fd(&meet->captured);
	unlink(meet->script);
	unlink(meet->dumped_path);
	unlink(meet->captured_path);
	free(meet->script);
	free(meet->dumped_path);
	free(meet->captured_path);
}

static int rendezvous_init(struct rendezvous *meet, const char *dir, struct bsh_error *err)
{
	auto_free char *text = NULL;

	meet->script = bsh_format("%s/post-dump", dir);
	meet->dumped_path = bsh_format("%s/dumped", dir);
	meet->captured_path = bsh_format("%s/captured", dir);
	meet->dumped = meet->captured = -1;
	text = bsh_format("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n"
			  "echo x >'%s' && read x <'%s'\n",
		meet->dumped_path, meet->captured_path);
	if (mkfifo(meet->dumped_path, 0600) < 0 || mkfifo(meet->captured_path, 0600) < 0)
		return bsh_fail(err, errno, "make %s", meet->dumped_path);
	/* Opened for both directions: neither open nor read depends on the other side. */
	meet->dumped = open(meet->dumped_path, O_RDWR | O_CLOEXEC);
	meet->captured = open(meet->captured_path, O_RDWR | O_CLOEXEC);
	if (meet->dumped < 0 || meet->captured < 0)
		return bsh_fail(err, errno, "open %s", meet->dumped_path);
	return bsh_write_file(AT_FDCWD, meet->script, text, strlen(text), 0700, err);
}

/* Waits until the dump is complete; false: it ended without asking. */
static bool rendezvous_dumped(const struct rendezvous *meet, int pidfd)
{
	struct pollfd events[] = {{.fd = meet->dumped, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};

	while (poll(events, 2, -1) < 0 && errno == EINTR)
		;
	return events[0].revents & POLLIN;
}

static int wait_for_dump(int pidfd, pid_t source, const char *log, struct bsh_error *err)
{
	bsh_carrier_watch(pidfd, source, DUMP_TIMEOUT_MS);
	return bsh_command_wait(pidfd, DUMP_TIMEOUT_MS, "criu dump", log, err);
}

static int record_unnamed(const struct criu_state *state, const struct bsh_source *src, struct bsh_command *command,
	struct bsh_trace *trace, struct bsh_error *err)
{
	struct rendezvous meet;
	auto_close int pidfd = -1;
	struct bsh_error files_err = {0};
	auto_free char *log = bsh_format("%s/dump.log", state->dir);
	int rc, files_rc = 0;

	rc = rendezvous_init(&meet, state->dir, err);
	if (rc == 0) {
		bsh_command_add(command, "--action-script=%s", meet.script);
		rc = bsh_command_start(command, NULL, &pidfd, err);
	}
	if (rc == 0) {
		if (rendezvous_dumped(&meet, pidfd)) {
			files_rc = src->capture_files(src->context, trace, &files_err);
			/* Also after a failure: the dump must end in order, or the source is left traced. */
			if (write(meet.captured, "x\n", 2) != 2)
				bsh_pidfd_kill(pidfd, SIGKILL);
		}
		rc = wait_for_dump(pidfd, src->pid, log, err);
	}
	rendezvous_release(&meet);
	if (rc == 0 && files_rc < 0) {
		if (err)
			*err = files_err;
		return files_rc;
	}
	return rc;
}

static int record_named(const struct criu_state *state, const struct bsh_source *src, const struct bsh_command *command,
	struct bsh_trace *trace, struct bsh_error *err)
{
	auto_free char *log = bsh_format("%s/dump.log", state->dir);
	struct bsh_error files_err = {0};
	auto_close int pidfd = -1;
	int rc, files_rc, phase;

	rc = bsh_command_start(command, NULL, &pidfd, err);
	if (rc < 0)
		return rc;
	files_rc = src->capture_files(src->context, trace, &files_err);
	phase = bsh_trace_begin(trace, "dump: rest");
	rc = wait_for_dump(pidfd, src->pid, log, err);
	bsh_trace_end(trace, phase);
	if (rc == 0 && files_rc < 0) {
		if (err)
			*err = files_err;
		return files_rc;
	}
	return rc;
}

static int criu_record(void *opaque, const struct bsh_source *src, struct bsh_trace *trace, struct bsh_carried *carried,
	struct bsh_error *err)
{
	auto_command struct bsh_command command;
	struct criu_state *state = opaque;
	bool unnamed;
	int rc, phase;

	(void)carried;
	bsh_command_init(&command, state->criu, "dump");
	rc = add_dump(&command, state, src, err);
	if (rc == 0)
		rc = bsh_open_files_unnamed(src->pids, src->n_pids, &unnamed, err);
	if (rc < 0)
		return rc;
	phase = bsh_trace_begin(trace, "dump");
	rc = unnamed ? record_unnamed(state, src, &command, trace, err)
		     : record_named(state, src, &command, trace, err);
	bsh_trace_end(trace, phase);
	return rc;
}

/* The page images' size is what was copied. */
static int criu_finish(void *opaque, struct bsh_trace *trace, struct bsh_carried *carried, struct bsh_error *err)
{
	struct criu_state *state = opaque;
	auto_closedir DIR *dir = opendir(state->images);
	struct dirent *item;
	struct stat st;

	(void)trace;
	if (!dir)
		return bsh_fail(err, errno, "open %s", state->images);
	while ((item = readdir(dir)))
		if (!strncmp(item->d_name, "pages-", 6) && fstatat(dirfd(dir), item->d_name, &st, 0) == 0)
			carried->copied_bytes += (unsigned long long)st.st_size;
	return 0;
}

static int read_pidfile(const char *path, pid_t *ret_pid, struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = bsh_read_file(AT_FDCWD, path, &text, NULL, err);
	long pid;

	if (rc < 0)
		return rc;
	pid = strtol(text, NULL, 10);
	if (pid <= 0)
		return bsh_fail(err, EIO, "%s holds \"%s\"", path, text);
	*ret_pid = (pid_t)pid;
	return 0;
}

static int run_restore(const struct criu_state *state, const struct bsh_place *place, const char *log_name,
	const char *pidfile, struct bsh_error *err)
{
	auto_free char *log = bsh_format("%s/%s", state->dir, log_name);
	auto_command struct bsh_command command;
	auto_close int netns = fcntl(place->netns_fd, F_DUPFD_CLOEXEC, 3);
	auto_close int pidfd = -1;
	int rc;

	if (netns < 0)
		return bsh_fail(err, errno, "duplicate a descriptor");
	bsh_command_init(&command, state->criu, "restore");
	add_common(&command, state, log_name);
	bsh_command_add(&command, "--root=%s", place->root);
	bsh_command_add(&command, "--restore-detached");
	/* The branch's init becomes the caller's child and can be reaped like a started one's. */
	bsh_command_add(&command, "--restore-sibling");
	bsh_command_add(&command, "--pidfile=%s", pidfile);
	bsh_command_add(&command, "--inherit-fd=fd[%d]:%s", netns, NETNS_KEY);
	command.keep_fd = netns;
	rc = bsh_command_start(&command, place, &pidfd, err);
	if (rc == 0)
		rc = bsh_command_wait(pidfd, RESTORE_TIMEOUT_MS, "criu restore", log, err);
	unlink(log);
	return rc;
}

static int criu_branch(void *opaque, const struct bsh_place *place, struct bsh_trace *trace,
	struct bsh_carried *carried, pid_t *ret_pid, struct bsh_error *err)
{
	struct criu_state *state = opaque;
	auto_free char *log_name = bsh_format("restore-%s.log", place->id);
	auto_free char *pidfile = bsh_format("%s/pid-%s", state->dir, place->id);
	int phase = bsh_trace_begin(trace, "restore");
	int rc;

	(void)carried;
	rc = run_restore(state, place, log_name, pidfile, err);
	if (rc == 0)
		rc = read_pidfile(pidfile, ret_pid, err);
	unlink(pidfile);
	bsh_trace_end(trace, phase);
	return rc;
}

/* ---- on disk ---------------------------------------------------------------------- */

/* Images never change: a second name does where both directories are on one file system. */
static int take_image(int from_dir, int to_dir, const char *name, struct bsh_error *err)
{
	unsigned long long bytes = 0;
	struct stat st;

	if (linkat(from_dir, name, to_dir, name, 0) == 0)
		return 0;
	if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return bsh_fail(err, errno, "look at the image %s", name);
	return bsh_copy_entry(from_dir, to_dir, name, &st, &bytes, err);
}

static int take_images(const char *from, const char *to, struct bsh_error *err)
{
	auto_close int from_dir = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int to_dir = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_strv char **names = NULL;
	int rc;

	if (from_dir < 0 || to_dir < 0)
		return bsh_fail(err, errno, "open %s", from_dir < 0 ? from : to);
	rc = bsh_list_dir(from_dir, ".", &names, err);
	for (size_t i = 0; rc == 0 && names[i]; i++)
		rc = take_image(from_dir, to_dir, names[i], err);
	return rc;
}

static int criu_save(void *opaque, const char *images, struct bsh_error *err)
{
	const struct criu_state *state = opaque;

	return take_images(state->images, images, err);
}

static int criu_load(const char *criu, const char *images, const char *dir, void **ret_state, struct bsh_error *err)
{
	void *state;
	int rc = criu_prepare(NULL, criu, dir, NULL, &state, err);

	if (rc < 0)
		return rc;
	rc = take_images(images, ((struct criu_state *)state)->images, err);
	if (rc < 0) {
		criu_drop(state);
		return rc;
	}
	*ret_state = state;
	return 0;
}

const struct bsh_engine bsh_engine_criu = {
	.name = "criu",
	.probe = criu_probe,
	.prepare = criu_prepare,
	.record = criu_record,
	.finish = criu_finish,
	.branch = criu_branch,
	.save = criu_save,
	.load = criu_load,
	.drop = criu_drop,
};
