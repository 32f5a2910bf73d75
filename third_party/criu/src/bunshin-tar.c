// SPDX-License-Identifier: GPL-2.0-only
/*
 * The contents of a tmpfs as a tar archive in GNU's format: directories, files (sparse
 * ones with their holes), links, FIFOs and devices; owner, mode and time.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "bunshin-gzip.h"
#include "bunshin-tar.h"
#include "log.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define BLOCK 512
#define NAME_ROOM (PATH_MAX + 1)

struct extent {
	off_t offset, len;
};

struct sparse {
	char offset[12], len[12];
};

struct header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8];
	char type, linkname[100], magic[8], uname[32], gname[32], major[8], minor[8];
	char atime[12], ctime[12], offset[12], longnames[4], unused;
	struct sparse sparse[4];
	char more, realsize[12], pad[17];
};

struct sparse_block {
	struct sparse sparse[21];
	char more, pad[7];
};

struct seen {
	ino_t inode;
	char *path;
};

struct archive {
	struct bunshin_gzip gz;
	dev_t device;
	struct seen *seen; /* files with several names */
	size_t n_seen;
	char path[NAME_ROOM];
	char data[65536];
};

/* ---- numbers and headers ------------------------------------------------ */

/* Octal digits, or binary for what does not fit. */
static void put_number(char *field, size_t size, uint64_t value)
{
	size_t i;

	if (value >> (3 * (size - 1)) == 0) {
		snprintf(field, size, "%0*llo", (int)size - 1, (unsigned long long)value);
		return;
	}
	for (i = size; i-- > 1; value >>= 8)
		field[i] = value;
	field[0] = (char)0x80;
}

static uint64_t get_number(const char *field, size_t size)
{
	uint64_t value = 0;
	size_t i;

	if (!(field[0] & 0x80)) {
		for (i = 0; i < size && field[i] >= '0' && field[i] <= '7'; i++)
			value = value * 8 + (field[i] - '0');
		return value;
	}
	for (i = 1; i < size; i++)
		value = value << 8 | (unsigned char)field[i];
	return value;
}

static int put_header(struct archive *a, struct header *h)
{
	unsigned int sum = 0;
	size_t i;

	memcpy(h->magic, "ustar  ", 8);
	memset(h->checksum, ' ', sizeof(h->checksum));
	for (i = 0; i < sizeof(*h); i++)
		sum += ((unsigned char *)h)[i];
	snprintf(h->checksum, 7, "%06o", sum);
	return bunshin_gzip_write(&a->gz, h, sizeof(*h));
}

static int put_padding(struct archive *a, uint64_t size)
{
	static const char zeros[BLOCK];

	return size % BLOCK ? bunshin_gzip_write(&a->gz, zeros, BLOCK - size % BLOCK) : 0;
}

/* A name that does not fit its field goes before its header. */
static int put_name(struct archive *a, char *field, char type, const char *name)
{
	struct header h = { .name = "././@LongLink", .type = type };
	size_t len = strlen(name);

	if (len <= 100) {
		memcpy(field, name, len);
		return 0;
	}
	put_number(h.mode, sizeof(h.mode), 0);
	put_number(h.size, sizeof(h.size), len + 1);
	memcpy(field, name, 100);
	return put_header(a, &h) || bunshin_gzip_write(&a->gz, name, len + 1) || put_padding(a, len + 1) ? -1 : 0;
}

/* ---- writing --------------------------------------------------------------- */

static const char *seen_before(struct archive *a, const struct stat *st)
{
	struct seen *v;
	size_t i;

	for (i = 0; i < a->n_seen; i++)
		if (a->seen[i].inode == st->st_ino)
			return a->seen[i].path;
	v = xrealloc(a->seen, (a->n_seen + 1) * sizeof(*v));
	if (!v)
		return NULL;
	a->seen = v;
	v[a->n_seen].inode = st->st_ino;
	v[a->n_seen].path = xstrdup(a->path);
	if (v[a->n_seen].path)
		a->n_seen++;
	return NULL;
}

static int find_extents(int fd, off_t size, struct extent **ret_extents, size_t *ret_n)
{
	struct extent *extents = NULL;
	off_t start = 0, end;
	size_t n = 0;

	while (start < size) {
		struct extent *v;

		start = lseek(fd, start, SEEK_DATA);
		if (start < 0)
			break;
		end = lseek(fd, start, SEEK_HOLE);
		v = end < 0 ? NULL : xrealloc(extents, (n + 1) * sizeof(*v));
		if (!v)
			break;
		extents = v;
		v[n++] = (struct extent){ start, (end > size ? size : end) - start };
		start = end;
	}
	*ret_extents = extents;
	*ret_n = n;
	/* No more data is no error. */
	return start >= size || (start < 0 && errno == ENXIO) ? 0 : -1;
}

static int put_extents(struct archive *a, int fd, const struct extent *extents, size_t n)
{
	uint64_t total = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		off_t at = extents[i].offset, end = at + extents[i].len;

		while (at < end) {
			size_t want = end - at > (off_t)sizeof(a->data) ? sizeof(a->data) : (size_t)(end - at);
			ssize_t got = pread(fd, a->data, want, at);

			if (got <= 0) {
				pr_perror("cannot read %s", a->path);
				return -1;
			}
			if (bunshin_gzip_write(&a->gz, a->data, got))
				return -1;
			at += got;
			total += got;
		}
	}
	return put_padding(a, total);
}

static void put_sparse(struct sparse *field, const struct extent *extent)
{
	put_number(field->offset, sizeof(field->offset), extent->offset);
	put_number(field->len, sizeof(field->len), extent->len);
}

/* The map of a sparse file: four extents in its header, then blocks of 21. */
static int put_sparse_header(struct archive *a, struct header *h, off_t size, const struct extent *extents, size_t n)
{
	size_t i, k;

	h->type = 'S';
	put_number(h->realsize, sizeof(h->realsize), size);
	for (i = 0; i < n && i < 4; i++)
		put_sparse(&h->sparse[i], &extents[i]);
	h->more = n > 4;
	if (put_header(a, h))
		return -1;
	for (; i < n; i += k) {
		struct sparse_block block = {};

		for (k = 0; k < 21 && i + k < n; k++)
			put_sparse(&block.sparse[k], &extents[i + k]);
		block.more = i + k < n;
		if (bunshin_gzip_write(&a->gz, &block, sizeof(block)))
			return -1;
	}
	return 0;
}

static int put_file(struct archive *a, int dir, const char *name, const struct stat *st, struct header *h)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), ret = -1;
	struct extent *extents = NULL, all = { st->st_size, 0 };
	uint64_t stored = 0;
	size_t n = 0, i;

	if (fd < 0 || find_extents(fd, st->st_size, &extents, &n)) {
		pr_perror("cannot read %s", a->path);
		goto out;
	}
	for (i = 0; i < n; i++)
		stored += extents[i].len;
	put_number(h->size, sizeof(h->size), stored);
	if (stored == (uint64_t)st->st_size)
		ret = put_header(a, h);
	else
		ret = put_sparse_header(a, h, st->st_size, n ? extents : &all, n ?: 1);
	if (!ret)
		ret = put_extents(a, fd, extents, n);
out:
	if (fd >= 0)
		close(fd);
	xfree(extents);
	return ret;
}

static int put_entry(struct archive *a, int dir, const char *name, const struct stat *st)
{
	struct header h = {};
	const char *first = S_ISREG(st->st_mode) && st->st_nlink > 1 ? seen_before(a, st) : NULL;
	char target[NAME_ROOM];
	ssize_t len;

	put_number(h.mode, sizeof(h.mode), st->st_mode & 07777);
	put_number(h.uid, sizeof(h.uid), st->st_uid);
	put_number(h.gid, sizeof(h.gid), st->st_gid);
	put_number(h.mtime, sizeof(h.mtime), st->st_mtime);
	put_number(h.size, sizeof(h.size), 0);
	put_number(h.major, sizeof(h.major), major(st->st_rdev));
	put_number(h.minor, sizeof(h.minor), minor(st->st_rdev));
	h.type = S_ISDIR(st->st_mode) ? '5' : S_ISFIFO(st->st_mode) ? '6' : S_ISCHR(st->st_mode) ? '3' : '4';
	if (S_ISLNK(st->st_mode)) {
		len = readlinkat(dir, name, target, sizeof(target) - 1);
		if (len < 0) {
			pr_perror("cannot read the link %s", a->path);
			return -1;
		}
		target[len] = '\0';
		first = target;
	}
	if (first) {
		h.type = S_ISLNK(st->st_mode) ? '2' : '1';
		if (put_name(a, h.linkname, 'K', first))
			return -1;
	}
	if (put_name(a, h.name, 'L', a->path))
		return -1;
	if (!S_ISREG(st->st_mode) || first)
		return put_header(a, &h);
	h.type = '0';
	return put_file(a, dir, name, st, &h);
}

static int put_directory(struct archive *a, int dir)
{
	size_t end = strlen(a->path);
	struct dirent *item;
	int ret = 0, fd = dup(dir);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);

	if (!list) {
		pr_perror("cannot list %s", a->path);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	while (!ret && (item = readdir(list))) {
		struct stat st;
		int sub;

		if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, ".."))
			continue;
		if (fstatat(dir, item->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
			pr_perror("cannot look at %s%s", a->path, item->d_name);
			ret = -1;
			break;
		}
		/* Sockets are made by who binds them; other file systems have their own image. */
		if (S_ISSOCK(st.st_mode) || st.st_dev != a->device)
			continue;
		snprintf(a->path + end, sizeof(a->path) - end, "%s%s", item->d_name, S_ISDIR(st.st_mode) ? "/" : "");
		ret = put_entry(a, dir, item->d_name, &st);
		if (!ret && S_ISDIR(st.st_mode)) {
			sub = openat(dir, item->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			ret = sub < 0 ? -1 : put_directory(a, sub);
			if (sub >= 0)
				close(sub);
		}
		a->path[end] = '\0';
	}
	closedir(list);
	return ret;
}

int bunshin_tar_write(int dir_fd, int out_fd)
{
	static const char end[2 * BLOCK];
	struct archive *a = xzalloc(sizeof(*a));
	struct stat st;
	int ret = -1;

	if (!a)
		return -1;
	strcpy(a->path, "./");
	if (fstat(dir_fd, &st)) {
		pr_perror("cannot look at a directory");
	} else {
		a->device = st.st_dev;
		ret = bunshin_gzip_start(&a->gz, out_fd) || put_entry(a, dir_fd, ".", &st) || put_directory(a, dir_fd) ||
				      bunshin_gzip_write(&a->gz, end, sizeof(end)) || bunshin_gzip_end(&a->gz) ?
			      -1 :
			      0;
	}
	while (a->n_seen)
		xfree(a->seen[--a->n_seen].path);
	xfree(a->seen);
	xfree(a);
	return ret;
}

/* ---- reading ----------------------------------------------------------------- */

static int get_file(struct archive *a, int fd, off_t at, uint64_t len)
{
	while (len) {
		size_t part = len > sizeof(a->data) ? sizeof(a->data) : len;

		if (bunshin_gzip_read(&a->gz, a->data, part))
			return -1;
		if (pwrite(fd, a->data, part, at) != (ssize_t)part) {
			pr_perror("cannot write %s", a->path);
			return -1;
		}
		at += part;
		len -= part;
	}
	return 0;
}

static int skip_padding(struct archive *a, uint64_t size)
{
	return size % BLOCK ? bunshin_gzip_read(&a->gz, a->data, BLOCK - size % BLOCK) : 0;
}

static int add_sparse(struct extent **extents, size_t *n, const struct sparse *from, size_t room)
{
	size_t i;

	for (i = 0; i < room && from[i].offset[0]; i++) {
		struct extent *v = xrealloc(*extents, (*n + 1) * sizeof(*v));

		if (!v)
			return -1;
		*extents = v;
		v[(*n)++] = (struct extent){ get_number(from[i].offset, 12), get_number(from[i].len, 12) };
	}
	return 0;
}

static int get_sparse_file(struct archive *a, int fd, const struct header *h)
{
	struct extent *extents = NULL;
	struct sparse_block block = { .more = h->more };
	uint64_t total = 0;
	size_t n = 0, i;
	int ret = add_sparse(&extents, &n, h->sparse, 4);

	while (!ret && block.more) {
		ret = bunshin_gzip_read(&a->gz, &block, sizeof(block));
		if (!ret)
			ret = add_sparse(&extents, &n, block.sparse, 21);
	}
	for (i = 0; i < n && !ret; i++) {
		ret = get_file(a, fd, extents[i].offset, extents[i].len);
		total += extents[i].len;
	}
	xfree(extents);
	if (ret || ftruncate(fd, get_number(h->realsize, 12)))
		return -1;
	return skip_padding(a, total);
}

static int get_content(struct archive *a, int dir, const struct header *h)
{
	int fd = openat(dir, a->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), ret;
	uint64_t size = get_number(h->size, 12);

	if (fd < 0) {
		pr_perror("cannot make %s", a->path);
		return -1;
	}
	if (h->type == 'S')
		ret = get_sparse_file(a, fd, h);
	else
		ret = get_file(a, fd, 0, size) || skip_padding(a, size) ? -1 : 0;
	close(fd);
	return ret;
}

static int make_entry(struct archive *a, int dir, const struct header *h, const char *target)
{
	mode_t mode = get_number(h->mode, 8);
	dev_t device = makedev(get_number(h->major, 8), get_number(h->minor, 8));

	switch (h->type) {
	case '0':
	case 'S':
		return get_content(a, dir, h);
	case '1':
		return linkat(dir, target, dir, a->path, 0);
	case '2':
		return symlinkat(target, dir, a->path);
	case '3':
		return mknodat(dir, a->path, S_IFCHR | mode, device);
	case '4':
		return mknodat(dir, a->path, S_IFBLK | mode, device);
	case '5':
		return mkdirat(dir, a->path, 0700) && errno != EEXIST ? -1 : 0;
	case '6':
		return mknodat(dir, a->path, S_IFIFO | mode, 0);
	}
	errno = EINVAL;
	return -1;
}

static int dress_entry(struct archive *a, int dir, const struct header *h)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = get_number(h->mtime, 12) } };

	if (h->type == '1')
		return 0;
	if (fchownat(dir, a->path, get_number(h->uid, 8), get_number(h->gid, 8), AT_SYMLINK_NOFOLLOW))
		return -1;
	if (h->type != '2' && fchmodat(dir, a->path, get_number(h->mode, 8), 0))
		return -1;
	return utimensat(dir, a->path, times, AT_SYMLINK_NOFOLLOW);
}

static int get_long_name(struct archive *a, uint64_t size, char *ret_name)
{
	if (size > NAME_ROOM) {
		pr_err("a name in an archive is too long\n");
		return -1;
	}
	return bunshin_gzip_read(&a->gz, ret_name, size) || skip_padding(a, size) ? -1 : 0;
}

/* 1: there is more. */
static int get_entry(struct archive *a, int dir)
{
	char name[NAME_ROOM] = "", target[NAME_ROOM] = "";
	struct header h;

	while (1) {
		if (bunshin_gzip_read(&a->gz, &h, sizeof(h)))
			return -1;
		if (!h.type && !h.name[0])
			return 0;
		if (h.type != 'L' && h.type != 'K')
			break;
		if (get_long_name(a, get_number(h.size, 12), h.type == 'L' ? name : target))
			return -1;
	}
	if (!name[0])
		memcpy(name, h.name, sizeof(h.name));
	if (!target[0])
		memcpy(target, h.linkname, sizeof(h.linkname));
	strcpy(a->path, name);
	if (make_entry(a, dir, &h, target) || dress_entry(a, dir, &h)) {
		pr_perror("cannot restore %s", a->path);
		return -1;
	}
	return 1;
}

int bunshin_tar_read(int in_fd, int dir_fd)
{
	struct archive *a = xzalloc(sizeof(*a));
	int ret;

	if (!a)
		return -1;
	ret = bunshin_gzip_open(&a->gz, in_fd);
	while (!ret) {
		ret = get_entry(a, dir_fd);
		if (ret <= 0)
			break;
		ret = 0;
	}
	xfree(a);
	return ret;
}
