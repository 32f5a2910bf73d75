// SPDX-License-Identifier: GPL-2.0-only
/*
 * System calls that the dump interrupts. A stopped thread's call has returned one of the kernel's own
 * errors, which say how to go on once the thread leaves the stop:
 *
 *   -ERESTARTSYS, NOINTR, NOHAND  make the call again, unless a signal handler runs
 *   -ERESTART_RESTARTBLOCK        go on, with the time that is left, which the kernel has noted: nanosleep, poll, futex
 *   -EINTR                        return, though no signal came: epoll_wait and the like
 *
 * The source is let go at a stop where the kernel looks at that error, so it gets the error back as it was; it
 * takes care (see the hook) that no rt_sigreturn is made, which would drop the kernel's note. The branch is
 * another thread, without a note: it makes the call again, with all of the time. Going on is itself
 * a call, restart_syscall, and a thread that is in it no longer shows which one it goes on with: that is looked up
 * while the source runs, by the function that it sleeps in.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include "bunshin-pool.h"
#include "bunshin-restart.h"
#include "common/compiler.h"
#include "compel/include/errno.h"
#include "images/core.pb-c.h"
#include "pstree.h"
#include "dump.h" /* wants the two before */
#include "log.h"
#include "ptrace-compat.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "restart: "

#ifdef __x86_64__

#define SYSCALL_LENGTH 2
#define CLOCKS_MAX 64 /* above the fixed clocks' numbers, below any address */

/* A thread that was seen in restart_syscall. */
struct seen {
	pid_t tid;
	uint64_t args[4], sp, ip;
	long nr;
};

static struct seen *seen;
static size_t n_seen;

static ssize_t read_text(pid_t pid, pid_t tid, const char *name, char *text, size_t room)
{
	char path[80];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", pid, tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	got = read(fd, text, room - 1);
	close(fd);
	if (got >= 0)
		text[got] = '\0';
	return got;
}

/* clock_nanosleep(clock, flags, ...) and nanosleep(address, ...) sleep in the same function. Some clocks are negative. */
static bool is_clock(uint64_t arg)
{
	return arg < CLOCKS_MAX || arg >> 31 == 1 || arg >> 31 == UINT64_MAX >> 31;
}

static long call_behind(const char *function, const struct seen *s)
{
	if (!function[0] || !strcmp(function, "0"))
		return -1;
	if (!strncmp(function, "futex", 5))
		return __NR_futex;
	if (strstr(function, "poll"))
		return __NR_poll;
	return is_clock(s->args[0]) ? __NR_clock_nanosleep : __NR_nanosleep;
}

static int look_at(pid_t pid, pid_t tid)
{
	struct seen s = { .tid = tid }, *all;
	char text[256], function[128];
	long nr;

	if (read_text(pid, tid, "syscall", text, sizeof(text)) <= 0 ||
	    sscanf(text, "%ld %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %*x %*x %" SCNx64 " %" SCNx64, &nr,
		   &s.args[0], &s.args[1], &s.args[2], &s.args[3], &s.sp, &s.ip) != 7 ||
	    nr != __NR_restart_syscall || read_text(pid, tid, "wchan", function, sizeof(function)) <= 0)
		return 0;
	s.nr = call_behind(function, &s);
	if (s.nr < 0)
		return 0;
	all = xrealloc(seen, (n_seen + 1) * sizeof(*all));
	if (!all)
		return -1;
	seen = all;
	seen[n_seen++] = s;
	return 0;
}

static int look_at_threads(pid_t pid)
{
	struct dirent *item;
	char path[64];
	DIR *dir;
	int ret = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	if (!dir)
		return 0; /* it has ended meanwhile */
	while (!ret && (item = readdir(dir)))
		if (item->d_name[0] != '.')
			ret = look_at(pid, atoi(item->d_name));
	closedir(dir);
	return ret;
}

int bunshin_restart_learn(pid_t root)
{
	struct bunshin_pid *pids;
	size_t n, i;
	int ret = 0;

	if (bunshin_read_tree(root, &pids, &n))
		return -1;
	for (i = 0; i < n && !ret; i++)
		ret = look_at_threads(pids[i].real);
	xfree(pids);
	return ret;
}

/* The call that the thread is in; -1 where that is not known. */
static long call_of(pid_t tid, const user_regs_struct_t *regs)
{
	size_t i;

	if (regs->native.orig_ax != __NR_restart_syscall)
		return regs->native.orig_ax;
	for (i = n_seen; i-- > 0;)
		if (seen[i].tid == tid && seen[i].sp == regs->native.sp && seen[i].ip == regs->native.ip &&
		    seen[i].args[0] == regs->native.di && seen[i].args[1] == regs->native.si &&
		    seen[i].args[2] == regs->native.dx && seen[i].args[3] == regs->native.r10)
			return seen[i].nr;
	return -1;
}

/* Calls that answer -EINTR to any stop, and here would have waited for ever. */
static bool waits_for_ever(const user_regs_struct_t *regs)
{
	switch (regs->native.orig_ax) {
	case __NR_epoll_wait:
	case __NR_epoll_pwait:
		return (int)regs->native.r10 < 0;
	case __NR_epoll_pwait2:
	case __NR_semtimedop:
		return !regs->native.r10;
	case __NR_rt_sigtimedwait:
		return !regs->native.dx;
	case __NR_semop:
		return true;
	}
	return false;
}

/* A futex wait until a moment can be made again as it was, and then still shows what it is. */
static bool waits_until(const user_regs_struct_t *regs)
{
	return regs->native.orig_ax == __NR_futex && (regs->native.si & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
}

void bunshin_keep_waiting(user_regs_struct_t *regs)
{
	long error = regs->native.ax;

	if ((error == -EINTR && waits_for_ever(regs)) || (error == -ERESTART_RESTARTBLOCK && waits_until(regs)))
		regs->native.ax = -ERESTARTNOHAND;
}

static int queued(pid_t tid, unsigned int flags)
{
	struct ptrace_peeksiginfo_args args = { .nr = 1, .flags = flags };
	siginfo_t info;

	return ptrace(PTRACE_PEEKSIGINFO, tid, &args, &info);
}

/* Will a handler run as soon as the thread does? */
static bool handler_is_due(pid_t tid)
{
	uint64_t pending = 0, shared = 0, caught = 0, blocked = 0;
	const char *line;
	char text[4096];

	if (queued(tid, 0) <= 0 && queued(tid, PTRACE_PEEKSIGINFO_SHARED) <= 0)
		return false;
	if (ptrace(PTRACE_GETSIGMASK, tid, sizeof(blocked), &blocked) ||
	    read_text(tid, tid, "status", text, sizeof(text)) <= 0)
		return false;
	if ((line = strstr(text, "\nSigPnd:")))
		sscanf(line, "\nSigPnd: %" SCNx64, &pending);
	if ((line = strstr(text, "\nShdPnd:")))
		sscanf(line, "\nShdPnd: %" SCNx64, &shared);
	if ((line = strstr(text, "\nSigCgt:")))
		sscanf(line, "\nSigCgt: %" SCNx64, &caught);
	return (pending | shared) & caught & ~blocked;
}

static void make_again(user_regs_struct_t *regs, long nr)
{
	regs->native.ax = nr;
	regs->native.ip -= SYSCALL_LENGTH;
}

/*
 * @source, @branch: the registers as they were in the call, answering @error. Sets what each side goes on with;
 * false: as CRIU does by itself.
 */
static bool go_on(pid_t tid, long error, user_regs_struct_t *source, user_regs_struct_t *branch)
{
	long nr = call_of(tid, source);

	source->native.ax = error;
	bunshin_keep_waiting(source);
	switch ((long)source->native.ax) {
	case -ERESTART_RESTARTBLOCK:
	case -ERESTARTNOHAND:
	case -ERESTARTSYS:
	case -ERESTARTNOINTR:
		break;
	default:
		return false;
	}
	if (nr < 0 || (error != -ERESTARTSYS && error != -ERESTARTNOINTR && handler_is_due(tid)))
		branch->native.ax = -EINTR;
	else
		make_again(branch, nr);
	return true;
}

int bunshin_save_regs(pid_t tid, void *core, user_regs_struct_t *regs, user_fpregs_struct_t *fpregs)
{
	user_regs_struct_t source = *regs, branch;
	long error;

	if (!user_regs_native(regs) || (long)regs->native.orig_ax < 0 || __compel_shstk_enabled(fpregs))
		return save_task_regs(tid, core, regs, fpregs);
	/* CRIU has changed its copy by now, not the thread. */
	errno = 0;
	error = ptrace(PTRACE_PEEKUSER, tid, offsetof(struct user_regs_struct, rax), 0);
	if (errno) {
		pr_perror("cannot read a register of %d", tid);
		return -1;
	}
	if (error == -ERESTARTSYS || error == -ERESTARTNOINTR || error == -ERESTARTNOHAND)
		source.native.ip += SYSCALL_LENGTH;
	branch = source;
	if (!go_on(tid, error, &source, &branch))
		return save_task_regs(tid, core, regs, fpregs);
	*regs = source;
	return save_task_regs(tid, core, &branch, fpregs);
}

#else

int bunshin_restart_learn(pid_t root)
{
	return 0;
}

int bunshin_save_regs(pid_t tid, void *core, user_regs_struct_t *regs, user_fpregs_struct_t *fpregs)
{
	return save_task_regs(tid, core, regs, fpregs);
}

#endif
