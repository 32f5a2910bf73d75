// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages are watched by a userfaultfd that only protects them against writing, which the kernel resolves
 * by itself (UFFD_FEATURE_WP_ASYNC): a write costs one fault and clears a bit of the page's table entry. No
 * other process may make the descriptor for a process, so a thread that waits in a system call is stopped, makes
 * the calls that we need, and goes on waiting. This is done in a fork, and before anything is frozen.
 *
 * What is written by way of the page itself, which was looked up before it was protected, clears no bit. Devices do so:
 * processes that read files around the page cache are not watched. Other processes do so: by /proc/PID/mem and ptrace, under
 * a lock that is waited for; by process_vm_writev(), under none, which a workspace's filter therefore has not.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <compel/infect.h>

#include "bunshin-msg.h"
#include "bunshin-pool.h"
#include "bunshin-restart.h"
#include "bunshin-watch.h"
#include "kerndat.h"
#include "log.h"
#include "page.h"
#include "pagemap_scan.h"
#include "util.h"
#include "xmalloc.h"

/* After __packed is known. */
#include "common/compiler.h"
#include "linux/userfaultfd.h"

#undef LOG_PREFIX
#define LOG_PREFIX "watch: "

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef UFFDIO_WRITEPROTECT
#define UFFDIO_WRITEPROTECT _IOWR(UFFDIO, 0x06, struct uffdio_writeprotect)
struct uffdio_writeprotect {
	struct uffdio_range range;
	uint64_t mode;
};
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
/* The kernel asks for the first of a scan that protects, though that protects only what is there. */
#define FEATURES (UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC)
#define REGIONS 1024

/* A process's descriptor, in the pool. */
struct watched {
	pid_t real;
	int uffd;
};

static struct watched *watched;
static size_t n_watched;
static int stopper = -1; /* a socket */
static bool joined = true;

#ifdef __x86_64__

#define STOP_PATIENCE_US 20000
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define CLONE_STOP (SIGTRAP | PTRACE_EVENT_CLONE << 8)
#define EVENT_STOP (SIGTRAP | PTRACE_EVENT_STOP << 8)
#define SYSCALL_LENGTH 2
#define SYSCALL_CODE 0x050f
#define KERNEL_SIGSET_SIZE 8
#define ENDED 0
#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_SUSPEND_SECCOMP)

/* ---- in the fork: threads make calls for us ---- */

static bool must_end;

/* A stopped thread, and what it shall go on with. */
struct stopped {
	pid_t tid;
	pid_t child; /* that it has made; 0: none */
	user_regs_struct_t regs;
	uint64_t blocked;
};

static int get_regs(pid_t tid, user_regs_struct_t *regs)
{
	struct iovec iov = { &regs->native, sizeof(regs->native) };

	if (ptrace(PTRACE_GETREGSET, tid, 1 /* NT_PRSTATUS */, &iov))
		return -1;
	/* Those of a process of 32 bits are shorter. */
	return iov.iov_len == sizeof(regs->native) ? 0 : -1;
}

static int set_regs(pid_t tid, user_regs_struct_t *regs)
{
	struct iovec iov = { &regs->native, sizeof(regs->native) };

	return ptrace(PTRACE_SETREGSET, tid, 1 /* NT_PRSTATUS */, &iov);
}

/* How it has stopped: a signal, and an event above it; ENDED; -1: it does not. */
static int next_stop(pid_t tid)
{
	int status;

	if (waitpid(tid, &status, __WALL) != tid)
		return -1;
	return WIFSTOPPED(status) ? status >> 8 : ENDED;
}

/* What is not let go, as it does not stop or is about to end, is when we end. */
static void detach(pid_t tid, int sig)
{
	if (ptrace(PTRACE_DETACH, tid, 0, sig))
		must_end = true;
}

/* Once it is stopped it must go on with what it had, whatever happens. */
static void let_go(struct stopped *s)
{
	/* Where the kernel still looks at how the interrupted call ended. */
	if (!ptrace(PTRACE_INTERRUPT, s->tid, 0, 0) && !ptrace(PTRACE_CONT, s->tid, 0, 0))
		next_stop(s->tid);
	bunshin_keep_waiting(&s->regs);
	set_regs(s->tid, &s->regs);
	ptrace(PTRACE_SETSIGMASK, s->tid, KERNEL_SIGSET_SIZE, &s->blocked);
	detach(s->tid, 0);
}

/* Only in a call: what stops elsewhere may be in the middle of a restartable sequence. */
static bool look(struct stopped *s)
{
	return !get_regs(s->tid, &s->regs) && (long)s->regs.native.orig_ax >= 0 &&
	       (ptrace(PTRACE_PEEKTEXT, s->tid, s->regs.native.ip - SYSCALL_LENGTH, 0) & 0xffff) == SYSCALL_CODE &&
	       !ptrace(PTRACE_GETSIGMASK, s->tid, KERNEL_SIGSET_SIZE, &s->blocked);
}

/* False: it was not stopped, or runs on. */
static bool stop(pid_t tid, struct stopped *ret)
{
	uint64_t all = ~0ull;
	int how;

	ret->tid = tid;
	ret->child = 0;
	if (ptrace(PTRACE_SEIZE, tid, 0, OPTIONS))
		return false;
	ptrace(PTRACE_INTERRUPT, tid, 0, 0);
	how = next_stop(tid);
	if (how == EVENT_STOP && look(ret) && !ptrace(PTRACE_SETSIGMASK, tid, KERNEL_SIGSET_SIZE, &all))
		return true;
	/* A signal that came first is its own. */
	if (how != ENDED)
		detach(tid, how > 0 && how < NSIG ? how : 0);
	return false;
}

/* Where a call has ended; what it has made is noted. */
static int next_end(struct stopped *s)
{
	unsigned long child;
	int how = next_stop(s->tid);

	if (how != CLONE_STOP || ptrace(PTRACE_GETEVENTMSG, s->tid, 0, &child))
		return how;
	s->child = child;
	return ptrace(PTRACE_SYSCALL, s->tid, 0, 0) ? -1 : next_stop(s->tid);
}

/* The thread makes a system call that does not wait. */
static long call(struct stopped *s, long nr, long first, long second, long third)
{
	user_regs_struct_t regs = s->regs;

	regs.native.ip -= SYSCALL_LENGTH;
	regs.native.orig_ax = -1;
	regs.native.ax = nr;
	regs.native.di = first;
	regs.native.si = second;
	regs.native.dx = third;
	regs.native.r10 = 0;
	if (set_regs(s->tid, &regs) || ptrace(PTRACE_SYSCALL, s->tid, 0, 0) || next_stop(s->tid) != SYSCALL_STOP ||
	    ptrace(PTRACE_SYSCALL, s->tid, 0, 0) || next_end(s) != SYSCALL_STOP || get_regs(s->tid, &regs))
		return -1;
	return regs.native.ax;
}

/* A copy of the descriptor that a stopped process of one thread makes. */
static int borrow_from(struct stopped *s)
{
	long theirs = call(s, __NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, 0, 0);
	int pidfd = theirs < 0 ? -1 : syscall(__NR_pidfd_open, s->tid, 0), ours;

	if (pidfd < 0)
		return -1;
	ours = syscall(__NR_pidfd_getfd, pidfd, theirs, 0);
	close(pidfd);
	return ours;
}

/*
 * A descriptor for the thread's process. Not one of its own, which other threads could hand on by fork(), or close, or get in the
 * place of another: a child makes it that shares nothing but the memory. Nobody is told of the child's end.
 */
static int borrow(struct stopped *s)
{
	long inner = call(s, __NR_clone, CLONE_VM, 0, 0);
	struct stopped child = *s;
	int ours = -1;

	if (!s->child)
		return -1;
	child.tid = s->child;
	/* It must not run by itself, should we end. */
	if (next_stop(child.tid) == EVENT_STOP && !ptrace(PTRACE_SETOPTIONS, child.tid, 0, OPTIONS | PTRACE_O_EXITKILL))
		ours = borrow_from(&child);
	kill(child.tid, SIGKILL);
	while (next_stop(child.tid) > 0)
		;
	call(s, __NR_wait4, inner, 0, __WALL | WNOHANG);
	return ours;
}

static bool read_text(pid_t pid, const char *tid, const char *name, char *text, size_t room)
{
	char path[320];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", pid, tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, text, room - 1);
	close(fd);
	if (got <= 0)
		return false;
	text[got] = '\0';
	return true;
}

/* How little it matters to stop the thread: 0: it must not be. */
static int patience_of(pid_t pid, const char *tid)
{
	char text[512], *state;
	long nr;

	if (!read_text(pid, tid, "stat", text, sizeof(text)))
		return 0;
	state = strrchr(text, ')');
	if (!state || strncmp(state, ") S", 3) || !read_text(pid, tid, "syscall", text, sizeof(text)) ||
	    sscanf(text, "%ld", &nr) != 1 || nr < 0)
		return 0;
	return nr == __NR_futex ? 2 : 1;
}

/* 0: all of the process's threads are busy. */
static pid_t patient_thread(pid_t pid)
{
	struct dirent *item;
	int patience, best = 0;
	pid_t found = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (best < 2 && dir && (item = readdir(dir))) {
		if (item->d_name[0] == '.')
			continue;
		patience = patience_of(pid, item->d_name);
		if (patience > best) {
			best = patience;
			found = atoi(item->d_name);
		}
	}
	if (dir)
		closedir(dir);
	return found;
}

static void give_up(int sig)
{
}

/* A thread that cannot be interrupted at once is not waited for. Again and again, should it come too early. */
static void limit_waiting(suseconds_t us)
{
	struct itimerval limit = { .it_value.tv_usec = us, .it_interval.tv_usec = us };

	setitimer(ITIMER_REAL, &limit, NULL);
}

static void visit(pid_t real, int socket)
{
	pid_t tid = patient_thread(real);
	struct stopped s;
	bool stopped;
	int fd;

	if (!tid)
		return;
	limit_waiting(STOP_PATIENCE_US);
	stopped = stop(tid, &s);
	limit_waiting(0);
	if (!stopped)
		return;
	fd = borrow(&s);
	let_go(&s);
	/* Ours stays open: who closes the last one takes the protection off, page by page. The pool has better to do. */
	if (fd >= 0)
		bunshin_msg_send(socket, &real, sizeof(real), &fd, 1);
}

/* It does not end with the pool: nobody but itself can give threads their registers back. */
static void visit_all(pid_t root, int socket) __attribute__((noreturn));
static void visit_all(pid_t root, int socket)
{
	struct sigaction alarm = { .sa_handler = give_up };
	struct bunshin_pid *pids;
	pid_t visited = 0;
	sigset_t none;
	size_t n, i;

	sigaction(SIGALRM, &alarm, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (bunshin_read_tree(root, &pids, &n))
		_exit(1);
	for (i = 0; i < n; i++)
		visit(pids[i].real, socket);
	if (must_end)
		_exit(0);
	bunshin_msg_send(socket, &visited, sizeof(visited), NULL, 0);
	/* Until the pool wants no more of it. */
	_exit(read(socket, &visited, sizeof(visited)) != 0);
}

static bool can_watch(void)
{
	return kdat.has_pagemap_scan && (kdat.uffd_features & FEATURES) == FEATURES;
}

#else

static void visit_all(pid_t root, int socket)
{
	_exit(0);
}

static bool can_watch(void)
{
	return false;
}

#endif

/* ---- in the pool ---- */

static bool reads(const char *dir, const char *name, const char *text)
{
	char path[640], have[256];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, have, sizeof(have) - 1);
	close(fd);
	have[got > 0 ? got : 0] = '\0';
	return strstr(have, text);
}

/* Threads of a workspace that is paused make no calls, not even ours. */
static bool runs(const char *freezer)
{
	return reads(freezer, "freezer.state", "THAWED") || reads(freezer, "cgroup.events", "frozen 0");
}

int bunshin_watch_start(pid_t root, const char *freezer)
{
	int ends[2];
	pid_t child;

	if (!can_watch() || !runs(freezer))
		return 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		pr_perror("cannot make a socket pair");
		return -1;
	}
	bunshin_tasks_advise(MADV_DONTFORK);
	child = fork();
	if (!child) {
		close(ends[0]);
		visit_all(root, ends[1]);
	}
	bunshin_tasks_advise(MADV_DOFORK);
	close(ends[1]);
	stopper = ends[0];
	joined = false;
	if (child > 0)
		return 0;
	pr_perror("cannot fork");
	return -1;
}

static int keep(pid_t real, int uffd)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURES };
	struct watched *all;

	if (ioctl(uffd, UFFDIO_API, &api))
		return -1;
	all = xrealloc(watched, (n_watched + 1) * sizeof(*all));
	if (!all)
		return -1;
	watched = all;
	watched[n_watched++] = (struct watched){ real, uffd };
	return 0;
}

void bunshin_watch_join(void)
{
	unsigned int n_fds = 1;
	pid_t real;
	int fd;

	for (; !joined && bunshin_msg_receive(stopper, &real, sizeof(real), &fd, &n_fds) == sizeof(real); n_fds = 1) {
		joined = !real;
		if (n_fds == 1 && keep(real, fd))
			close(fd);
	}
	joined = true;
}

void bunshin_watch_end(void)
{
	while (n_watched)
		close(watched[--n_watched].uffd);
	close_safe(&stopper);
	joined = true;
}

/*
 * Neither code, which the dump pokes into, nor what has pages of its own only by other means. And of files only what
 * nobody may write to: where a page of one's own was given back, the kernel keeps a mark for it, and the first of the two faults that a
 * write then takes makes a page that is marked as unwritten, as like as not in the very frame.
 */
bool bunshin_may_watch(const struct bunshin_vma *vma)
{
	if (vma->whole || vma->sealed)
		return false;
	return vma->kind == BUNSHIN_WHOLE || (vma->kind == BUNSHIN_RUN && !(vma->prot & (PROT_EXEC | PROT_WRITE)));
}

/*
 * Waits for whoever looked up a page before to write to it from outside. What must be asked for is that a range be watched no
 * more, and one that has nothing will do.
 */
static void wait_for_writers(int uffd)
{
	struct uffdio_range last = { .start = kdat.task_size - PAGE_SIZE, .len = PAGE_SIZE };

	ioctl(uffd, UFFDIO_UNREGISTER, &last);
}

/* Also cleans up: pages can have bits of an earlier watch, see is_unwritten(), and would be taken for protected. */
static bool enroll(int uffd, uint64_t start, uint64_t end)
{
	struct uffdio_range range = { .start = start, .len = end - start };
	struct uffdio_register reg = { .range = range, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect none = { .range = range };

	if (ioctl(uffd, UFFDIO_REGISTER, &reg))
		return false;
	if (!ioctl(uffd, UFFDIO_WRITEPROTECT, &none))
		return true;
	ioctl(uffd, UFFDIO_UNREGISTER, &range);
	return false;
}

/*
 * Protects the private pages that are there. Marks for others would look like swapped pages, so none are made. @anon: no
 * page is a file's, and none need be asked.
 */
static void protect(int pagemap_fd, uint64_t start, uint64_t end, bool anon)
{
	static struct page_region regions[REGIONS];
	uint64_t not = anon ? PAGE_IS_PFNZERO : PAGE_IS_FILE | PAGE_IS_PFNZERO;
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.flags = PM_SCAN_WP_MATCHING,
		.start = start,
		.end = end,
		.vec = (uint64_t)regions,
		.vec_len = REGIONS,
		.category_mask = not | PAGE_IS_PRESENT,
		.category_inverted = not,
		.return_mask = PAGE_IS_PRESENT,
	};

	while (arg.start < end) {
		long n = ioctl(pagemap_fd, PAGEMAP_SCAN, &arg);

		/* What is not protected is copied once more. */
		if (n < REGIONS)
			break;
		arg.start = regions[n - 1].end;
	}
}

/* Whether it has a file open around the page cache, or asks for reading without waiting. */
static bool reads_directly(pid_t real)
{
	char path[320], text[256], *flags;
	struct dirent *item;
	bool found = false;
	ssize_t got;
	DIR *dir;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo", real);
	dir = opendir(path);
	while (!found && dir && (item = readdir(dir))) {
		if (item->d_name[0] == '.')
			continue;
		fd = openat(dirfd(dir), item->d_name, O_RDONLY | O_CLOEXEC);
		got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
		if (fd >= 0)
			close(fd);
		if (got <= 0)
			continue;
		text[got] = '\0';
		flags = strstr(text, "flags:");
		found = flags && strtoul(flags + strlen("flags:"), NULL, 8) & O_DIRECT;
	}
	if (dir)
		closedir(dir);
	return found || !dir;
}

static int uffd_of(pid_t real)
{
	size_t i;

	for (i = 0; i < n_watched; i++)
		if (watched[i].real == real)
			return watched[i].uffd;
	return -1;
}

bool bunshin_watch(pid_t real, int pagemap_fd, const struct bunshin_vma *vmas, size_t n)
{
	int uffd = uffd_of(real);
	size_t i, last;

	if (uffd < 0)
		return false;
	for (i = 0; i < n; i++)
		if (vmas[i].aio)
			return false;
	for (i = 0; i < n; i = last + 1) {
		last = i;
		if (!bunshin_may_watch(&vmas[i]))
			continue;
		/* Neighbours at a stroke; what the kernel does not want to watch goes by itself. */
		while (last + 1 < n && vmas[last + 1].start == vmas[last].end && vmas[last + 1].kind == vmas[i].kind &&
		       bunshin_may_watch(&vmas[last + 1]))
			last++;
		if (enroll(uffd, vmas[i].start, vmas[last].end))
			protect(pagemap_fd, vmas[i].start, vmas[last].end, vmas[i].kind == BUNSHIN_WHOLE);
	}
	wait_for_writers(uffd);
	return !reads_directly(real);
}
