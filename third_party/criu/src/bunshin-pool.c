// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool process: `criu bunshin-pool FD`, where FD is its control socket.
 * It is single-threaded but for the copying while a source is frozen, since it forks.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bunshin-msg.h"
#include "bunshin-orphan.h"
#include "bunshin-pool-proto.h"
#include "bunshin-pool.h"
#include "bunshin-watch.h"
#include "common/list.h"
#include "cgroup.h"
#include "cr_options.h"
#include "crtools.h"
#include "external.h"
#include "fault-injection.h"
#include "image.h"
#include "kerndat.h"
#include "linux/mount.h"
#include "log.h"
#include "net.h"
#include "rst-malloc.h"
#include "servicefd.h"
#include "util-caps.h"
#include "util.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#ifndef FSMOUNT_CLOEXEC
#define FSMOUNT_CLOEXEC 1
#endif

#define FDS_MAX BSH_POOL_BRANCH_FDS_MAX
#define SAVE_NICE 10

union request {
	struct bsh_pool_header header;
	struct bsh_pool_prepare prepare;
	struct bsh_pool_branch branch;
};

static struct {
	int control;
	int signals;
	int owner; /* pidfd of who started us */
	int images_fd;
	int log_fd; /* a file in memory; what was logged last becomes an answer's text */
	off_t log_read;
} pool = { .control = -1, .signals = -1, .owner = -1, .images_fd = -1, .log_fd = -1 };

/*
 * A restore whose root task is killed may wait for ever: for the task's word that will not come, or as the tracer of
 * others, whom the dying root waits for. So restores name their root tasks here, and the pool watches.
 */
struct restoring {
	pid_t restore; /* 0: free */
	pid_t root;    /* 0: not made yet */
	int64_t dying_since_ms; /* 0: it lives */
};

#define RESTORING_MAX 1024
#define LOOK_EVERY_MS 200
#define GRACE_MS 1500 /* a restore that fails kills its tasks itself, and then has a reason to tell */
#define TASK_IS_EXITING 0x4 /* PF_EXITING */

static struct restoring *restoring; /* shared with the restores */
static struct restoring *mine;	    /* in a restore */

static int make_restoring(void)
{
	restoring = mmap(NULL, RESTORING_MAX * sizeof(*restoring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (restoring != MAP_FAILED)
		return 0;
	pr_perror("cannot map shared memory");
	return -1;
}

void bunshin_root_made(pid_t root)
{
	if (mine)
		mine->root = root;
}

static struct restoring *free_restoring(void)
{
	size_t i;

	for (i = 0; i < RESTORING_MAX; i++)
		if (!restoring[i].restore)
			return &restoring[i];
	return NULL;
}

static bool is_exiting(pid_t pid)
{
	char path[64], text[512], *end;
	unsigned int flags = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return true;
	text[got] = '\0';
	end = strrchr(text, ')');
	return end && sscanf(end, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & TASK_IS_EXITING);
}

static void look_at(struct restoring *r, int64_t now_ms)
{
	if (!r->root || !is_exiting(r->root))
		return;
	if (!r->dying_since_ms)
		r->dying_since_ms = now_ms;
	else if (now_ms - r->dying_since_ms >= GRACE_MS)
		kill(r->restore, SIGKILL);
}

/* Returns whether there is any restore to look at. */
static bool look_at_restores(void)
{
	struct timespec now;
	bool any = false;
	size_t i;

	clock_gettime(CLOCK_MONOTONIC, &now);

	for (i = 0; i < RESTORING_MAX; i++) {
		if (!restoring[i].restore)
			continue;
		any = true;
		look_at(&restoring[i], now.tv_sec * 1000ll + now.tv_nsec / 1000000);
	}
	return any;
}

static void forget_restore(pid_t ended)
{
	size_t i;

	for (i = 0; i < RESTORING_MAX; i++)
		if (restoring[i].restore == ended)
			restoring[i] = (struct restoring){};
}

int bunshin_set_external_net(pid_t root, const char *key)
{
	char path[64], text[128];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", root);
	if (stat(path, &st)) {
		pr_perror("cannot look at %s", path);
		return -1;
	}
	snprintf(text, sizeof(text), "net[%lu]:%s", (unsigned long)st.st_ino, key);
	return add_external(text);
}

static int answer_on(int socket, struct bsh_pool_answer *answer, uint32_t seq, enum bsh_pool_type type)
{
	answer->header = (struct bsh_pool_header){
		.size = sizeof(*answer), .type = type, .version = BSH_POOL_VERSION, .seq = seq
	};
	return bunshin_msg_send(socket, answer, sizeof(*answer), NULL, 0);
}

static int answer_with(struct bsh_pool_answer *answer, uint32_t seq, enum bsh_pool_type type)
{
	return answer_on(pool.control, answer, seq, type);
}

/* Who waits for a branch or a new pool learns there why it did not come; the pool goes on. */
static int refuse(const int *fds, unsigned int n_fds, uint32_t seq, int error, const char *text)
{
	struct bsh_pool_answer answer = { .error = error };

	snprintf(answer.text, sizeof(answer.text), "%s: %s", text, strerror(error));
	if (n_fds)
		answer_on(fds[0], &answer, seq, BSH_POOL_FAILED);
	return 0;
}

static int answer_failed(uint32_t seq, int error, const char *text)
{
	struct bsh_pool_answer answer = { .error = error };

	snprintf(answer.text, sizeof(answer.text), "%s", text);
	return answer_with(&answer, seq, BSH_POOL_FAILED);
}

/* "Error (criu/x.c:7): pool: text" without the part before text. */
void bunshin_error_text(const char *line, char *ret_text, size_t room)
{
	const char *colon = strncmp(line, "Error (", 7) ? NULL : strstr(line, "): ");

	snprintf(ret_text, room, "%s", colon ? colon + 3 : line);
	ret_text[strcspn(ret_text, "\n")] = '\0';
}

/* The reason for what just failed, once. (CRIU's own keeping of it allocates memory that forks would share.) */
static const char *last_error(const char *otherwise)
{
	static char text[512];
	char log[4096], *error;
	ssize_t got = pread(pool.log_fd, log, sizeof(log) - 1, pool.log_read);

	if (got <= 0)
		return otherwise;
	pool.log_read = lseek(pool.log_fd, 0, SEEK_END);
	log[got] = '\0';
	error = strstr(log, "Error (");
	if (!error)
		return otherwise;
	bunshin_error_text(error, text, sizeof(text));
	return text;
}

/* A tmpfs that is mounted nowhere: images are small files by the hundred, which disk file systems are slow to make. */
static int make_images_dir(void)
{
	int fs = cr_fsopen("tmpfs", FSOPEN_CLOEXEC), dir = -1;

	if (fs >= 0 && !cr_fsconfig(fs, FSCONFIG_SET_STRING, "mode", "700", 0) &&
	    !cr_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		dir = cr_fsmount(fs, FSMOUNT_CLOEXEC, 0);
	if (dir < 0)
		pr_perror("cannot make a tmpfs for the images");
	if (fs >= 0)
		close(fs);
	return dir;
}

/* Where branches look for their images. */
static int open_images(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", pool.images_fd);
	return open_image_dir(path, O_RSTR) < 0 ? -1 : 0;
}

static int serve_prepare(const union request *req)
{
	struct bsh_pool_answer answer = {};

	if (pool.images_fd < 0)
		pool.images_fd = make_images_dir();
	if (pool.images_fd < 0 || bunshin_prepare(&req->prepare, pool.images_fd)) {
		bunshin_record_abandon();
		return answer_failed(req->header.seq, EIO, last_error("the pool cannot be prepared"));
	}
	return answer_with(&answer, req->header.seq, BSH_POOL_OK);
}

static int serve_record(const union request *req)
{
	struct bsh_pool_answer answer = {};

	if (!bunshin_record(&answer))
		return answer_with(&answer, req->header.seq, BSH_POOL_RECORDED);
	return answer_failed(req->header.seq, EIO, last_error(answer.text[0] ? answer.text : "the dump failed"));
}

/* The source runs on as soon as it can; the pool is put in order after that, before any branch; without that it ends. */
static int serve_release(const union request *req)
{
	struct bsh_pool_answer answer = {};
	int ret;

	/* What is asked of the source first: it may end as soon as it is released. */
	if (bunshin_release(&answer) || bunshin_copyup_learn())
		return answer_failed(req->header.seq, EIO, last_error("the dump did not end well"));
	ret = answer_with(&answer, req->header.seq, BSH_POOL_OK);
	if (bunshin_record_finish())
		return -1;
	bunshin_watch_end();
	if (bunshin_fill_sweep())
		return -1;
	bunshin_shm_sweep();
	if (bunshin_shm_settle())
		return -1;
	/* All branches would copy, task after task, what recording took. */
	malloc_trim(0);
	return ret;
}

static int serve_branch(const union request *req, const int *fds, unsigned int n_fds)
{
	const struct bsh_pool_branch *branch = &req->branch;
	pid_t parent = getpid(), pid;
	struct restoring *slot;

	if (branch->n_cgroups > BSH_POOL_CGROUPS_MAX || n_fds != 3 + branch->n_cgroups + (branch->view ? 2 : 0))
		return refuse(fds, n_fds, req->header.seq, EINVAL, "BRANCH came without its descriptors");
	slot = free_restoring();
	if (!slot)
		return refuse(fds, n_fds, req->header.seq, EAGAIN, "too many branches are being made");
	*slot = (struct restoring){};
	pid = fork();
	if (!pid) {
		mine = slot;
		madvise(restoring, RESTORING_MAX * sizeof(*restoring), MADV_DONTFORK);
		/* Tasks that are killed tell the pool alone: without it the restore would wait for them for ever. */
		bunshin_end_with(parent);
		bunshin_branch_run(branch, fds);
	}
	slot->restore = pid > 0 ? pid : 0;
	return pid < 0 ? refuse(fds, n_fds, req->header.seq, errno, "the pool cannot fork") : 0;
}

/* What our children leave is ours to reap: process 1 of a container often reaps nothing. Forks do not inherit this. */
static void adopt_orphans(void)
{
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		pr_perror("cannot become a subreaper");
}

/* In the new pool: the snapshot is the child's now. */
static int become_child(int control, uint32_t seq)
{
	struct bsh_pool_answer answer = { .pid = getpid() };

	close(pool.control);
	if (pool.images_fd >= 0)
		close(pool.images_fd);
	pool.control = control;
	pool.images_fd = -1;
	adopt_orphans();
	bunshin_fill_inherited = true;
	bunshin_record_reset();
	munmap(restoring, RESTORING_MAX * sizeof(*restoring));
	if (make_restoring())
		return -1;
	return control < 0 ? -1 : answer_with(&answer, seq, BSH_POOL_OK);
}

/*
 * As fork(), but the child is our parent's: of a chain of snapshots the first goes first, and nobody would be left to
 * reap the others.
 */
static pid_t fork_sibling(void)
{
	return syscall(__NR_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, 0);
}

static int serve_fork(const union request *req, const int *fds, unsigned int n_fds)
{
	pid_t pid;

	if (n_fds != 1)
		return refuse(fds, n_fds, req->header.seq, EINVAL, "FORK wants one descriptor");
	pid = fork_sibling();
	if (!pid)
		return become_child(fcntl(fds[0], F_DUPFD_CLOEXEC, 3), req->header.seq);
	return pid < 0 ? refuse(fds, n_fds, req->header.seq, errno, "the pool cannot fork") : 0;
}

/* In a child: the pool serves others meanwhile, and writing yields to whoever computes. */
static int save(pid_t parent, const int *fds, uint32_t seq)
{
	struct bsh_pool_answer answer = {};

	close(pool.control);
	bunshin_end_with(parent);
	setpriority(PRIO_PROCESS, 0, SAVE_NICE);
	if (!bunshin_save(pool.images_fd, fds[1]))
		return answer_on(fds[0], &answer, seq, BSH_POOL_OK) ? 1 : 0;
	answer.error = EIO;
	snprintf(answer.text, sizeof(answer.text), "%s", last_error("the images cannot be written"));
	return answer_on(fds[0], &answer, seq, BSH_POOL_FAILED) ? 1 : 0;
}

static int serve_save(const union request *req, const int *fds, unsigned int n_fds)
{
	pid_t parent = getpid(), pid;

	if (n_fds != 2 || pool.images_fd < 0)
		return refuse(fds, n_fds, req->header.seq, EINVAL, "SAVE came without its descriptors");
	pid = fork();
	if (!pid)
		_exit(save(parent, fds, req->header.seq));
	return pid < 0 ? refuse(fds, n_fds, req->header.seq, errno, "the pool cannot fork") : 0;
}

static int serve_load(const union request *req, const int *fds, unsigned int n_fds)
{
	struct bsh_pool_answer answer = {};

	if (n_fds != 1 || pool.images_fd >= 0)
		return answer_failed(req->header.seq, EINVAL, "LOAD came to a pool in use");
	pool.images_fd = make_images_dir();
	if (pool.images_fd < 0 || bunshin_load(fds[0], pool.images_fd))
		return answer_failed(req->header.seq, EIO, last_error("the images cannot be read"));
	if (open_images() || bunshin_shm_settle() || bunshin_copyup_learn())
		return answer_failed(req->header.seq, EIO, last_error("the images cannot be opened"));
	return answer_with(&answer, req->header.seq, BSH_POOL_OK);
}

static int serve(const union request *req, const int *fds, unsigned int n_fds)
{
	/* What went wrong before, and was no failure, is none of this one's. */
	pool.log_read = lseek(pool.log_fd, 0, SEEK_END);
	if (req->header.version != BSH_POOL_VERSION)
		return answer_failed(req->header.seq, EPROTO, "core and pool are of different builds");
	switch (req->header.type) {
	case BSH_POOL_PREPARE:
		return serve_prepare(req);
	case BSH_POOL_RECORD:
		return serve_record(req);
	case BSH_POOL_RELEASE:
		return serve_release(req);
	case BSH_POOL_BRANCH:
		return serve_branch(req, fds, n_fds);
	case BSH_POOL_FORK:
		return serve_fork(req, fds, n_fds);
	case BSH_POOL_SAVE:
		return serve_save(req, fds, n_fds);
	case BSH_POOL_LOAD:
		return serve_load(req, fds, n_fds);
	}
	return answer_failed(req->header.seq, EINVAL, "unknown request");
}

/* False when the core is gone. */
static bool serve_one(void)
{
	unsigned int n_fds = FDS_MAX, i;
	int fds[FDS_MAX];
	union request req;
	ssize_t got;
	int ret;

	got = bunshin_msg_receive(pool.control, &req, sizeof(req), fds, &n_fds);
	if (got <= 0)
		return false;
	if (got < (ssize_t)sizeof(req.header) || got != req.header.size)
		ret = answer_failed(0, EPROTO, "malformed request");
	else
		ret = serve(&req, fds, n_fds);
	for (i = 0; i < n_fds; i++)
		close(fds[i]);
	return !ret;
}

/* Restores, the inits of branches (they are siblings of the restore) and forked pools end here. */
static void reap(void)
{
	struct signalfd_siginfo info;
	pid_t pid;

	while (read(pool.signals, &info, sizeof(info)) == sizeof(info))
		;
	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		forget_restore(pid);
}

static int run(void)
{
	struct pollfd events[3];

	while (1) {
		events[0] = (struct pollfd){ .fd = pool.control, .events = POLLIN };
		events[1] = (struct pollfd){ .fd = pool.signals, .events = POLLIN };
		events[2] = (struct pollfd){ .fd = pool.owner, .events = POLLIN };
		if (poll(events, 3, look_at_restores() ? LOOK_EVERY_MS : -1) < 0 && errno != EINTR)
			return 1;
		if (events[1].revents & POLLIN)
			reap();
		if (events[2].revents)
			return 0;
		if ((events[0].revents & (POLLIN | POLLHUP | POLLERR)) && !serve_one())
			return 0;
	}
}

/* As the core wants every dump and restore. */
static void set_options(void)
{
	opts.manage_cgroups = CG_MODE_IGNORE;
	opts.tcp_established_ok = 1;
	opts.handle_file_locks = 1;
	opts.link_remap_ok = 1;
	opts.network_lock_method = NETWORK_LOCK_SKIP;
	/* Branches have the very files, as layers; their build ids need not be read. */
	opts.file_validation_method = FILE_VALIDATION_FILE_SIZE;
	opts.log_level = LOG_ERROR;
	log_set_loglevel(opts.log_level);
}

static int start_log(void)
{
	char path[64];

	pool.log_fd = memfd_create("bunshin-pool-log", MFD_CLOEXEC);
	if (pool.log_fd < 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pool.log_fd);
	return log_init(path);
}

/* Its end is ours, also when copies of the control socket live on in other processes. */
static int watch_owner(void)
{
	pid_t owner = getppid();

	pool.owner = syscall(__NR_pidfd_open, owner, 0);
	if (pool.owner >= 0 && fcntl(pool.owner, F_SETFD, FD_CLOEXEC) == 0 && getppid() == owner)
		return 0;
	pr_perror("cannot watch the process that started us");
	return -1;
}

static int set_up(void)
{
	sigset_t chld;

	set_options();
	util_init();
	if (start_log() || watch_owner() || check_caps() || kerndat_init() || check_options() || init_service_fd())
		return -1;
	adopt_orphans();
	if (make_restoring())
		return -1;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_SETMASK, &chld, NULL);
	pool.signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (pool.signals < 0) {
		pr_perror("cannot make a signalfd");
		return -1;
	}
	return 0;
}

bool bunshin_pool_main(int argc, char **argv, int *ret_exit)
{
	if (argc != 2 || strcmp(argv[0], "bunshin-pool"))
		return false;
	*ret_exit = 1;
	pool.control = atoi(argv[1]);
	if (fcntl(pool.control, F_SETFD, FD_CLOEXEC)) {
		pr_perror("descriptor %d is not open", pool.control);
		return true;
	}
	if (set_up()) {
		answer_failed(0, EIO, last_error("the pool cannot be set up"));
		return true;
	}
	*ret_exit = run();
	bunshin_record_abandon();
	return true;
}
