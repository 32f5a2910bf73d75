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
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "bunshin-orphan.h"
#include "bunshin-pool-proto.h"
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

/*
 * What the overlay's inodes are known by: where a file was copied up from, or itself. As trusted.overlay.origin holds
 * it, and, with more before it, a file handle.
 */
#define ORIGIN_TYPE 0xf8
#define ORIGIN_PADDING 3
#define ORIGIN_MAGIC 0xfb
#define ORIGIN_UPPER 4 /* of flags: it is itself */
#define ORIGIN_LINK "origin"

struct origin {
	uint8_t version, magic, len, flags, type, uuid[16], id[MAX_HANDLE_SZ];
} __attribute__((packed));

struct file {
	char *name;	      /* NULL: done */
	struct origin origin; /* .len: 0: not known */
	int held;	      /* that inode: its number is nobody else's as long as it lives */
};

static struct {
	struct file *v;
	size_t n, room;
} written;

static struct {
	pid_t root;
	char upper[sizeof(((struct bsh_pool_prepare *)0)->upper)];
} source;

void bunshin_copyup_source(pid_t root, const char *upper)
{
	source.root = root;
	snprintf(source.upper, sizeof(source.upper), "%s", upper);
}

static void forget_all(void)
{
	while (written.n) {
		struct file *file = &written.v[--written.n];

		xfree(file->name);
		if (file->held >= 0)
			close(file->held);
	}
}

static int add_name(const char *name)
{
	if (written.n == written.room) {
		size_t room = written.room ? 2 * written.room : 64;
		struct file *v = xrealloc(written.v, room * sizeof(*v));

		if (!v)
			return -1;
		written.v = v;
		written.room = room;
	}
	written.v[written.n] = (struct file){ .name = xstrdup(name), .held = -1 };
	return written.v[written.n++].name ? 0 : -1;
}

static bool is_written(const FileEntry *file)
{
	const RegFileEntry *reg = file->reg;

	return file->type == FD_TYPES__REG && reg && (reg->flags & O_ACCMODE) != O_RDONLY &&
	       (!reg->has_mode || S_ISREG(reg->mode));
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

/* The inode that the overlay goes by for a file of the source, and what holds it. */
static void identify(struct file *file, int root, int store)
{
	uint8_t seen_bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ] __attribute__((aligned(8)));
	uint8_t real_bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ] __attribute__((aligned(8)));
	struct file_handle *seen = (void *)seen_bytes, *real = (void *)real_bytes;
	struct origin origin = {};
	const size_t before_id = offsetof(struct origin, id);
	int fd = open_below(root, file->name, O_PATH), mount_id, ret;

	if (fd < 0)
		return;
	seen->handle_bytes = MAX_HANDLE_SZ;
	ret = name_to_handle_at(fd, "", seen, &mount_id, AT_EMPTY_PATH);
	close(fd);
	if (ret || seen->handle_type != ORIGIN_TYPE || seen->handle_bytes <= ORIGIN_PADDING + before_id)
		return;
	memcpy(&origin, seen_bytes + sizeof(*seen) + ORIGIN_PADDING, seen->handle_bytes - ORIGIN_PADDING);
	if (origin.version || origin.magic != ORIGIN_MAGIC || origin.len <= before_id ||
	    ORIGIN_PADDING + origin.len > (int)seen->handle_bytes)
		return;
	origin.flags &= ~ORIGIN_UPPER;
	real->handle_type = origin.type;
	real->handle_bytes = origin.len - before_id;
	memcpy(real_bytes + sizeof(*real), origin.id, real->handle_bytes);
	file->held = open_by_handle_at(store, real, O_PATH | O_CLOEXEC);
	if (file->held >= 0)
		file->origin = origin;
}

static void identify_all(void)
{
	char path[64];
	int root, store;
	size_t i;

	if (!source.root)
		return;
	snprintf(path, sizeof(path), "/proc/%d/root", source.root);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	store = open(source.upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (i = 0; root >= 0 && store >= 0 && i < written.n; i++)
		identify(&written.v[i], root, store);
	close_safe(&root);
	close_safe(&store);
	source.root = 0;
}

int bunshin_copyup_learn(void)
{
	struct cr_img *img = open_image(CR_FD_FILES, O_RSTR);
	FileEntry *file;
	int ret;

	if (!img)
		return -1;
	forget_all();
	while ((ret = pb_read_one_eof(img, &file, PB_FILE)) > 0) {
		ret = is_written(file) ? add_name(file->reg->name) : 0;
		file_entry__free_unpacked(file, NULL);
		if (ret)
			break;
	}
	close_image(img);
	if (!ret)
		identify_all();
	return ret;
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
 * What the overlay does for a copied-up file is to remember where it came from. For a directory it must do so itself, and
 * for a file of several names; another file is put into the upper directory as if it had been made there, or had come from
 * where the source's did.
 */
static struct {
	int root, upper, view, index;
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

/*
 * The number that programs know the file by stays (SQLite writes to no database whose number has changed): the overlay
 * takes it from the origin, if the file is in its index by that. As it does itself when it copies up.
 */
static bool keep_number(int to, const char *name, const struct origin *origin)
{
	char entry[2 * sizeof(*origin) + 1];
	size_t i;

	if (!origin->len || place.index < 0)
		return false;
	for (i = 0; i < origin->len; i++)
		sprintf(entry + 2 * i, "%02x", ((const uint8_t *)origin)[i]);
	if (!fsetxattr(to, "trusted.overlay.origin", origin, origin->len, 0) &&
	    !fsetxattr(to, "trusted.overlay.nlink", "U-1", 3, 0) && !linkat(place.dir, name, place.index, entry, 0))
		return true;
	fremovexattr(to, "trusted.overlay.origin");
	fremovexattr(to, "trusted.overlay.nlink");
	return false;
}

/*
 * The overlay would count the entry in its index as a second name, unless the origin has another number of names than
 * one: then it does as trusted.overlay.nlink says. So that has two while the overlay first looks.
 */
static void look_up(const struct file *file)
{
	bool linked = !linkat(file->held, "", place.index, ORIGIN_LINK, AT_EMPTY_PATH);
	int fd = open_below(place.root, file->name, O_PATH);

	close_safe(&fd);
	if (linked)
		unlinkat(place.index, ORIGIN_LINK, 0);
}

static bool copy_over(int from, const struct stat *st, const char *name, const struct file *file)
{
	const struct timespec times[2] = { st->st_atim, st->st_mtim };
	int to = openat(place.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	bool copied;

	if (to < 0)
		return false;
	copied = copy_content(to, from, st->st_size) && !fchown(to, st->st_uid, st->st_gid) &&
		 !fchmod(to, st->st_mode & 07777) && !futimens(to, times);
	if (!copied)
		unlinkat(place.dir, name, 0);
	else if (keep_number(to, name, &file->origin))
		look_up(file);
	close(to);
	return copied;
}

/* False: not done, and nothing of it is left. */
static bool put_file(const struct file *file)
{
	const char *name = file->name, *slash = strrchr(name, '/');
	int from = open_below(place.view, name, O_RDONLY | O_NONBLOCK);
	struct stat st;
	bool put;

	if (from < 0)
		return false;
	put = slash && !fstat(from, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1 && !flistxattr(from, NULL, 0) &&
	      enter_dir(name, slash - name) && copy_over(from, &st, slash + 1, file);
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
	place.index = openat(upper, "../work/index", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (i = 0; place.root >= 0 && view >= 0 && i < written.n; i++)
		if (put_file(&written.v[i]))
			written.v[i].name = NULL;
	leave_dir();
	for (i = 0; place.root >= 0 && i < written.n; i++)
		if (written.v[i].name)
			copy_up(place.root, written.v[i].name);
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
