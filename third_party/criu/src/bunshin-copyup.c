// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files that are open for writing are copied up by the overlay when a branch opens them
 * again: some hundred of a browser's, one after the other, all in the one task that
 * everything then waits for. So another process does it, beside the reading of the images, and mostly without the
 * overlay. Who fails here fails, with a reason, in the task.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
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
static int open_below(int dir, const char *name, uint64_t flags)
{
	const struct open_how how = {
		.flags = flags | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};

	return syscall(__NR_openat2, dir, name, &how, sizeof(how));
}

static void copy_up(int root, const char *name)
{
	int fd = open_below(root, name, O_PATH), opened = -1;
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

/* ---- without the overlay's help ---- */

/*
 * What the overlay does for a copied-up file is to remember where it came from: an entry in its index, and two attributes
 * of which the second does not fit into the inode. That is most of the work, and it matters to files of several names
 * and to directories. Another file is put into the upper directory as if it had been made there.
 */
static struct {
	int root, upper, view;
	const char *name; /* of the directory that is open */
	size_t name_len;
	int dir; /* the same in the upper directory */
	struct stat st;
} place;

static void leave_dir(void)
{
	const struct timespec times[2] = { place.st.st_atim, place.st.st_mtim };

	if (place.dir < 0)
		return;
	futimens(place.dir, times);
	close(place.dir);
	place.dir = -1;
}

/* The overlay copies it up when its mode is set, to what it was; files in it have not been looked up by then. */
static bool make_dir(const char *path)
{
	int dir = open_below(place.root, path, O_RDONLY | O_DIRECTORY);
	struct stat st;
	bool made;

	if (dir < 0)
		return false;
	made = !fstat(dir, &st) && !fchmod(dir, st.st_mode & 07777);
	close(dir);
	return made;
}

static bool enter_dir(const char *name, size_t len)
{
	char path[PATH_MAX];

	if (place.dir >= 0 && len == place.name_len && !strncmp(name, place.name, len))
		return true;
	leave_dir();
	if (snprintf(path, sizeof(path), "%.*s/", (int)len, name) >= (int)sizeof(path))
		return false;
	place.dir = open_below(place.upper, path, O_RDONLY | O_DIRECTORY);
	if (place.dir < 0 && make_dir(path))
		place.dir = open_below(place.upper, path, O_RDONLY | O_DIRECTORY);
	if (place.dir < 0 || fstat(place.dir, &place.st)) {
		leave_dir();
		return false;
	}
	place.name = name;
	place.name_len = len;
	return true;
}

static bool copy_content(int to, int from, off_t size)
{
	off_t at = 0, end;

	while (at < size && (at = lseek(from, at, SEEK_DATA)) >= 0) {
		end = lseek(from, at, SEEK_HOLE);
		if (end < 0 || lseek(to, at, SEEK_SET) != at)
			return false;
		while (at < end)
			if (sendfile(to, from, &at, end - at) <= 0)
				return false;
	}
	return (at >= 0 || errno == ENXIO) && !ftruncate(to, size);
}

static bool copy_over(int from, const struct stat *st, const char *name)
{
	const struct timespec times[2] = { st->st_atim, st->st_mtim };
	int to = openat(place.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	bool copied;

	if (to < 0)
		return false;
	copied = copy_content(to, from, st->st_size) && !fchown(to, st->st_uid, st->st_gid) &&
		 !fchmod(to, st->st_mode & 07777) && !futimens(to, times);
	close(to);
	if (!copied)
		unlinkat(place.dir, name, 0);
	return copied;
}

/* False: not done, and nothing of it is left. */
static bool put_file(const char *name)
{
	const char *slash = strrchr(name, '/');
	int from = open_below(place.view, name, O_RDONLY | O_NONBLOCK);
	struct stat st;
	bool put;

	if (from < 0)
		return false;
	put = slash && !fstat(from, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1 && !flistxattr(from, NULL, 0) &&
	      enter_dir(name, slash - name) && copy_over(from, &st, slash + 1);
	close(from);
	return put;
}

static void run(const char *root_path, int upper, int view)
{
	size_t i;

	place.root = open(root_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	place.upper = upper;
	place.view = view;
	place.dir = -1;
	for (i = 0; place.root >= 0 && view >= 0 && i < written.n; i++)
		if (put_file(written.names[i]))
			written.names[i][0] = '\0';
	leave_dir();
	for (i = 0; place.root >= 0 && i < written.n; i++)
		if (written.names[i][0])
			copy_up(place.root, written.names[i]);
}

static int copyup = -1;

/*
 * A child of the pool, not of the restore, which takes its own children for tasks. The socket for the answer
 * stays open in it, so that a restore that is killed has not ended, for who waits there, before this has.
 */
void bunshin_copyup_start(const char *root_path, int upper, int view)
{
	pid_t pool = getppid();
	long pid;

	if (!written.n)
		return;
	pid = syscall(__NR_clone, CLONE_PARENT | CLONE_PIDFD, NULL, &copyup, NULL, 0);
	if (pid < 0)
		pr_perror("cannot fork to copy files up");
	if (pid)
		return;
	bunshin_end_with(pool);
	run(root_path, upper, view);
	_exit(0);
}

void bunshin_copyup_wait(void)
{
	struct pollfd event = { .fd = copyup, .events = POLLIN };

	while (copyup >= 0 && poll(&event, 1, -1) < 0 && errno == EINTR)
		;
}
