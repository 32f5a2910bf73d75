/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool: a process of our CRIU holds a snapshot's private memory, and its forks
 * become branches. A snapshot of a branch starts as a fork of its parent's pool.
 *
 * With the kernel module (kmod/) the pool shares the source's pages instead of copying them: all
 * else is the same, and so is what happens without the module. Hence one file for both engines.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "../../third_party/criu/src/bunshin-pool-proto.h"
#include "base/api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/command.h"
#include "engine/engine.h"
#include "host/carrier.h"
#include "host/spawn.h"
#include "host/trace.h"

#define RECORD_TIMEOUT_MS 300000
#define BRANCH_TIMEOUT_MS 300000
#define SAVE_TIMEOUT_MS 3600000
#define GHOST_LIMIT_BYTES 2147483647
/* The name under which the network namespace goes from source to branch. */
#define NETNS_KEY "bunshin-net"

struct pool_state {
	int control; /* socket to the pool */
	int pidfd;   /* of the pool */
	pid_t pid;
	uint32_t seq;
};

static int pool_probe(const char *criu, struct bsh_error *err)
{
	if (access(criu, X_OK) < 0)
		return bsh_fail(err, errno, "%s cannot be run; build it with `make criu`", criu);
	return 0;
}

static void pool_drop(void *opaque)
{
	struct pool_state *state = opaque;
	int status;

	if (!state)
		return;
	/* A program that was forked meanwhile may hold copies of the descriptor; the shutdown is for all of them. */
	if (state->control >= 0)
		shutdown(state->control, SHUT_RDWR);
	if (state->pidfd >= 0)
		bsh_wait_pidfd(state->pidfd, -1, &status);
	bsh_close_fd(&state->control);
	bsh_close_fd(&state->pidfd);
	free(state);
}

/* ---- messages ------------------------------------------------------------------- */

static int make_channel(int ret_ends[2], struct bsh_error *err)
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_ends) < 0)
		return bsh_fail(err, errno, "make a socket pair");
	return 0;
}

static int send_request(
	int socket, const void *request, size_t size, const int *fds, size_t n_fds, struct bsh_error *err)
{
	char control[CMSG_SPACE(BSH_POOL_BRANCH_FDS_MAX * sizeof(int))] = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)request, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	if (sendmsg(socket, &msg, MSG_NOSIGNAL) < 0)
		return errno == EPIPE || errno == ECONNRESET
			       ? bsh_fail(err, EOWNERDEAD, "the page pool's process has ended")
			       : bsh_fail(err, errno, "ask the page pool");
	return 0;
}

static int receive_answer(
	int socket, int timeout_ms, const char *what, struct bsh_pool_answer *ret_answer, struct bsh_error *err)
{
	long long deadline_ns = bsh_now_ns() + timeout_ms * 1000000LL;
	struct pollfd event = {.fd = socket, .events = POLLIN};
	ssize_t got;
	int n;

	do {
		long long left_ns = deadline_ns - bsh_now_ns();

		n = poll(&event, 1, left_ns > 0 ? (int)(left_ns / 1000000) : 0);
	} while (n < 0 && errno == EINTR);
	if (n == 0)
		return bsh_fail(err, ETIMEDOUT, "%s takes longer than %d ms", what, timeout_ms);
	got = n < 0 ? -1 : recv(socket, ret_answer, sizeof(*ret_answer), 0);
	if (got < 0 && errno != ECONNRESET)
		return bsh_fail(err, errno, "%s: read the page pool's answer", what);
	if (got <= 0)
		return bsh_fail(err, EOWNERDEAD, "%s: the page pool's process has ended", what);
	if (got != sizeof(*ret_answer) || ret_answer->header.version != BSH_POOL_VERSION)
		return bsh_fail(err, EPROTO, "%s: core and CRIU are of different builds; build both again", what);
	if (ret_answer->header.type == BSH_POOL_FAILED)
		return bsh_fail(err, ret_answer->error, "%s: %s", what, ret_answer->text);
	return 0;
}

static struct bsh_pool_header make_header(struct pool_state *state, enum bsh_pool_type type, size_t size)
{
	return (struct bsh_pool_header){
		.size = (uint32_t)size,
		.type = type,
		.version = BSH_POOL_VERSION,
		.seq = __atomic_add_fetch(&state->seq, 1, __ATOMIC_RELAXED),
	};
}

static int ask_plain(struct pool_state *state, enum bsh_pool_type type, struct bsh_error *err)
{
	struct bsh_pool_plain request = {.header = make_header(state, type, sizeof(request))};

	return send_request(state->control, &request, sizeof(request), NULL, 0, err);
}

static void copy_phases(struct bsh_trace *trace, const struct bsh_pool_answer *answer)
{
	const unsigned int room = sizeof(trace->phases) / sizeof(*trace->phases);

	for (uint32_t i = 0; i < answer->n_phases && i < BSH_POOL_PHASES_MAX && trace->n_phases < room; i++) {
		struct bsh_phase *phase = &trace->phases[trace->n_phases++];

		snprintf(phase->name, sizeof(phase->name), "%s", answer->phases[i].name);
		phase->start_ns = answer->phases[i].start_ns - trace->start_ns;
		phase->length_ns = answer->phases[i].length_ns;
	}
}

/* ---- pool processes --------------------------------------------------------------- */

static int start_pool(struct pool_state *state, const char *criu, struct bsh_error *err)
{
	auto_command struct bsh_command command;
	int ends[2];
	int rc = make_channel(ends, err);

	if (rc < 0)
		return rc;
	bsh_command_init(&command, criu, "--no-default-config");
	bsh_command_add(&command, "bunshin-pool");
	bsh_command_add(&command, "%d", ends[1]);
	command.keep_fd = ends[1];
	rc = bsh_command_start(&command, NULL, &state->pidfd, err);
	bsh_close_fd(&ends[1]);
	state->control = ends[0];
	return rc < 0 ? rc : bsh_pidfd_pid(state->pidfd, &state->pid, err);
}

/* The parent snapshot's pool forks; the new one shares all its pages. */
static int fork_pool(struct pool_state *state, struct pool_state *parent, struct bsh_error *err)
{
	struct bsh_pool_plain request = {.header = make_header(parent, BSH_POOL_FORK, sizeof(request))};
	struct bsh_pool_answer answer;
	int ends[2];
	int rc = make_channel(ends, err);

	if (rc < 0)
		return rc;
	state->control = ends[0];
	rc = send_request(parent->control, &request, sizeof(request), &ends[1], 1, err);
	bsh_close_fd(&ends[1]);
	if (rc == 0)
		rc = receive_answer(state->control, RECORD_TIMEOUT_MS, "fork the page pool", &answer, err);
	if (rc == 0)
		rc = bsh_pidfd_open(answer.pid, &state->pidfd, err);
	if (rc == 0)
		state->pid = answer.pid;
	return rc;
}

static int obtain_pool(struct pool_state *state, struct pool_state *parent, const char *criu, struct bsh_error *err)
{
	struct bsh_error fork_err = {0};

	if (!parent)
		return start_pool(state, criu, err);
	if (fork_pool(state, parent, &fork_err) == 0)
		return 0;
	/* Something killed the parent's pool: all pages are copied, as for a first snapshot. */
	bsh_close_fd(&state->control);
	state->control = -1;
	return start_pool(state, criu, err);
}

/* ---- the engine ---------------------------------------------------------------------- */

static int ask_prepare(struct pool_state *state, const struct bsh_source *src, bool share, struct bsh_error *err)
{
	struct bsh_pool_prepare request = {
		.header = make_header(state, BSH_POOL_PREPARE, sizeof(request)),
		.root_pid = src->pid,
		.ghost_limit = GHOST_LIMIT_BYTES,
		.share = share,
		.log_level = 1,
		.net_key = NETNS_KEY,
	};
	struct bsh_pool_answer answer;
	int rc;

	if (snprintf(request.freezer, sizeof(request.freezer), "%s", src->freezer) >= (int)sizeof(request.freezer))
		return bsh_fail(err, ENAMETOOLONG, "%s is too long", src->freezer);
	if (snprintf(request.upper, sizeof(request.upper), "%s", src->upper) >= (int)sizeof(request.upper))
		return bsh_fail(err, ENAMETOOLONG, "%s is too long", src->upper);
	rc = send_request(state->control, &request, sizeof(request), NULL, 0, err);
	return rc < 0 ? rc : receive_answer(state->control, RECORD_TIMEOUT_MS, "prepare the page pool", &answer, err);
}

static int prepare(const struct bsh_source *src, const char *criu, const char *dir, bool share, struct bsh_trace *trace,
	void **ret_state, struct bsh_error *err)
{
	struct pool_state *state = bsh_alloc(sizeof(*state));
	int phase, rc;

	(void)dir;
	state->control = state->pidfd = -1;
	phase = bsh_trace_begin(trace, src->parent ? "pool: fork" : "pool: start");
	rc = obtain_pool(state, src->parent, criu, err);
	bsh_trace_end(trace, phase);
	if (rc == 0)
		rc = ask_prepare(state, src, share, err);
	if (rc < 0) {
		pool_drop(state);
		return rc;
	}
	*ret_state = state;
	return 0;
}

static int pool_prepare(const struct bsh_source *src, const char *criu, const char *dir, struct bsh_trace *trace,
	void **ret_state, struct bsh_error *err)
{
	return prepare(src, criu, dir, false, trace, ret_state, err);
}

static int kmod_prepare(const struct bsh_source *src, const char *criu, const char *dir, struct bsh_trace *trace,
	void **ret_state, struct bsh_error *err)
{
	return prepare(src, criu, dir, true, trace, ret_state, err);
}

static int release_source(struct pool_state *state, pid_t source, struct bsh_trace *trace, struct bsh_error *err)
{
	struct bsh_pool_answer answer;
	int rc = ask_plain(state, BSH_POOL_RELEASE, err);

	if (rc < 0)
		return rc;
	bsh_carrier_watch(state->control, source, RECORD_TIMEOUT_MS);
	rc = receive_answer(state->control, RECORD_TIMEOUT_MS, "let the source go", &answer, err);
	if (rc == 0)
		copy_phases(trace, &answer);
	return rc;
}

static int pool_record(void *opaque, const struct bsh_source *src, struct bsh_trace *trace, struct bsh_carried *carried,
	struct bsh_error *err)
{
	struct pool_state *state = opaque;
	struct bsh_error files_err = {0};
	struct bsh_pool_answer answer;
	int rc, files_rc;

	rc = ask_plain(state, BSH_POOL_RECORD, err);
	if (rc < 0)
		return rc;
	files_rc = src->capture_files(src->context, trace, &files_err);
	bsh_carrier_watch(state->control, src->pid, RECORD_TIMEOUT_MS);
	rc = receive_answer(state->control, RECORD_TIMEOUT_MS, "record", &answer, err);
	if (rc < 0)
		return rc;
	if (files_rc == 0 && answer.made_files)
		files_rc = src->capture_files(src->context, trace, &files_err);
	carried->copied_bytes = answer.copied_bytes;
	carried->shared_bytes = answer.shared_bytes;
	rc = release_source(state, src->pid, trace, err);
	if (rc == 0 && files_rc < 0) {
		if (err)
			*err = files_err;
		return files_rc;
	}
	return rc;
}

static int pool_finish(void *opaque, struct bsh_trace *trace, struct bsh_carried *carried, struct bsh_error *err)
{
	(void)opaque;
	(void)trace;
	(void)carried;
	(void)err;
	return 0;
}

static bool pool_lives(const struct pool_state *state)
{
	struct pollfd event = {.fd = state->pidfd, .events = POLLIN};

	return poll(&event, 1, 0) == 0;
}

static int ask_branch(struct pool_state *state, const struct bsh_place *place, int answer_fd, struct bsh_error *err)
{
	struct bsh_pool_branch request = {
		.header = make_header(state, BSH_POOL_BRANCH, sizeof(request)),
		.n_cgroups = place->n_cgroups,
		.cgroup_v2 = place->cgroup_v2 != NULL,
		.log_level = 1,
		.net_key = NETNS_KEY,
	};
	int fds[BSH_POOL_BRANCH_FDS_MAX] = {answer_fd, place->mntns_fd, place->netns_fd};
	size_t n = 3 + place->n_cgroups;
	auto_close int v2 = -1, upper = -1;

	if (place->n_cgroups > BSH_POOL_CGROUPS_MAX)
		return bsh_fail(err, E2BIG, "%u cgroups", place->n_cgroups);
	if (snprintf(request.root, sizeof(request.root), "%s", place->root) >= (int)sizeof(request.root))
		return bsh_fail(err, ENAMETOOLONG, "%s is too long", place->root);
	memcpy(fds + 3, place->cgroup_fds, place->n_cgroups * sizeof(int));
	if (place->cgroup_v2) {
		v2 = fds[3] = open(place->cgroup_v2, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (v2 < 0)
			return bsh_fail(err, errno, "open %s", place->cgroup_v2);
	}
	if (place->view_fd >= 0) {
		upper = open(place->upper, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (upper < 0)
			return bsh_fail(err, errno, "open %s", place->upper);
		request.view = 1;
		fds[n++] = upper;
		fds[n++] = place->view_fd;
	}
	return send_request(state->control, &request, sizeof(request), fds, n, err);
}

static int pool_branch(void *opaque, const struct bsh_place *place, struct bsh_trace *trace,
	struct bsh_carried *carried, pid_t *ret_pid, struct bsh_error *err)
{
	struct pool_state *state = opaque;
	int phase = bsh_trace_begin(trace, "restore");
	struct bsh_pool_answer answer;
	int ends[2];
	int rc = make_channel(ends, err);

	(void)carried;
	if (rc < 0)
		return rc;
	rc = ask_branch(state, place, ends[1], err);
	bsh_close_fd(&ends[1]);
	if (rc == 0) {
		rc = receive_answer(ends[0], BRANCH_TIMEOUT_MS, "restore", &answer, err);
		if (rc == -EOWNERDEAD && pool_lives(state))
			rc = bsh_fail(err, EIO, "restore: the branch's first process was killed, or what restores it");
	}
	bsh_close_fd(&ends[0]);
	bsh_trace_end(trace, phase);
	if (rc == 0) {
		copy_phases(trace, &answer);
		*ret_pid = answer.pid;
	}
	return rc;
}

static pid_t pool_holder(const void *opaque)
{
	const struct pool_state *state = opaque;

	return state->pid;
}

/* ---- on disk -------------------------------------------------------------------------- */

static int pool_save(void *opaque, const char *images, struct bsh_error *err)
{
	struct pool_state *state = opaque;
	struct bsh_pool_plain request = {.header = make_header(state, BSH_POOL_SAVE, sizeof(request))};
	auto_close int dir = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct bsh_pool_answer answer;
	int ends[2];
	int rc;

	if (dir < 0)
		return bsh_fail(err, errno, "open %s", images);
	rc = make_channel(ends, err);
	if (rc < 0)
		return rc;
	rc = send_request(state->control, &request, sizeof(request), (int[]){ends[1], dir}, 2, err);
	bsh_close_fd(&ends[1]);
	if (rc == 0)
		rc = receive_answer(ends[0], SAVE_TIMEOUT_MS, "write the images", &answer, err);
	bsh_close_fd(&ends[0]);
	return rc;
}

static int ask_load(struct pool_state *state, const char *images, struct bsh_error *err)
{
	struct bsh_pool_plain request = {.header = make_header(state, BSH_POOL_LOAD, sizeof(request))};
	auto_close int dir = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct bsh_pool_answer answer;
	int rc;

	if (dir < 0)
		return bsh_fail(err, errno, "open %s", images);
	rc = send_request(state->control, &request, sizeof(request), &dir, 1, err);
	return rc < 0 ? rc : receive_answer(state->control, SAVE_TIMEOUT_MS, "read the images", &answer, err);
}

static int pool_load(const char *criu, const char *images, const char *dir, void **ret_state, struct bsh_error *err)
{
	struct pool_state *state = bsh_alloc(sizeof(*state));
	int rc;

	(void)dir;
	state->control = state->pidfd = -1;
	rc = start_pool(state, criu, err);
	if (rc == 0)
		rc = ask_load(state, images, err);
	if (rc < 0) {
		pool_drop(state);
		return rc;
	}
	*ret_state = state;
	return 0;
}

const struct bsh_engine bsh_engine_kmod = {
	.name = "kmod",
	.probe = pool_probe,
	.prepare = kmod_prepare,
	.record = pool_record,
	.finish = pool_finish,
	.branch = pool_branch,
	.save = pool_save,
	.load = pool_load,
	.holder = pool_holder,
	.drop = pool_drop,
};

const struct bsh_engine bsh_engine_pool = {
	.name = "pool",
	.probe = pool_probe,
	.prepare = pool_prepare,
	.record = pool_record,
	.finish = pool_finish,
	.branch = pool_branch,
	.save = pool_save,
	.load = pool_load,
	.holder = pool_holder,
	.drop = pool_drop,
};
