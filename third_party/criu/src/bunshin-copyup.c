// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files that are open for writing are copied up by the overlay when a branch opens them
 * again: some hundred of a browser's, one after the other, all in the one task that
 * everything then waits for. So another process opens them at once, while the tasks are still
 * being made. It only opens and closes: who fails here fails, with a reason, in the task.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bunshin-orphan.h"
#include "bunshin-pool.h"
#include "image.h"
#include "log.h"
#include "protobuf.h"
#include "util.h"
#include "xmalloc.h"

#include "images/fdinfo.pb-c.h"
#include "images/regfile.pb-c.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

static struct {
	char **names;
	size_t n, room;
} written;

static int add_name(const char *name)
{
	if (written.n == written.room) {
		size_t room = written.room ? 2 * written.room : 64;
		char **names = xrealloc(written.names, room * sizeof(*names));

		if (!names)
			return -1;
		written.names = names;
		written.room = room;
	}
	written.names[written.n] = xstrdup(name);
	return written.names[written.n++] ? 0 : -1;
}

static bool is_written(const FileEntry *file)
{
	const RegFileEntry *reg = file->reg;

	return file->type == FD_TYPES__REG && reg && (reg->flags & O_ACCMODE) != O_RDONLY &&
	       (!reg->has_mode || S_ISREG(reg->mode));
}

int bunshin_copyup_learn(void)
{
	struct cr_img *img = open_image(CR_FD_FILES, O_RSTR);
	FileEntry *file;
	int ret;

	if (!img)
		return -1;
	while (written.n)
		xfree(written.names[--written.n]);
	while ((ret = pb_read_one_eof(img, &file, PB_FILE)) > 0) {
		ret = is_written(file) ? add_name(file->reg->name) : 0;
		file_entry__free_unpacked(file, NULL);
		if (ret)
			break;
	}
	close_image(img);
	return ret;
}

/* The workspace's links lead nowhere but into the workspace, and only its regular files are opened. */
static void copy_up(int root, const char *name)
{
	const struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	int fd = syscall(__NR_openat2, root, name, &how, sizeof(how)), opened = -1;
	char path[64];
	struct stat st;

	if (fd < 0)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		opened = open(path, O_WRONLY | O_CLOEXEC);
	if (opened >= 0)
		close(opened);
	close(fd);
}

/*
 * A child of the pool, not of the restore, which takes its own children for tasks. The socket for the answer
 * stays open in it, so that a restore that is killed has not ended, for who waits there, before this has.
 */
int bunshin_copyup_start(const char *root_path)
{
	pid_t pool = getppid();
	int pidfd = -1, root;
	size_t i;
	long pid;

	if (!written.n)
		return -1;
	pid = syscall(__NR_clone, CLONE_PARENT | CLONE_PIDFD, NULL, &pidfd, NULL, 0);
	if (pid < 0)
		pr_perror("cannot fork to copy files up");
	if (pid)
		return pidfd;
	bunshin_end_with(pool);
	root = open(root_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (i = 0; root >= 0 && i < written.n; i++)
		copy_up(root, written.names[i]);
	_exit(0);
}

void bunshin_copyup_wait(int pidfd)
{
	struct pollfd event = { .fd = pidfd, .events = POLLIN };

	while (pidfd >= 0 && poll(&event, 1, -1) < 0 && errno == EINTR)
		;
}
