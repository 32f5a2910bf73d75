/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of the image, renamed again and again; below it a file open and mapped, the working directory, watches.
 */
#include <limits.h>
#include <sys/inotify.h>

#include "guest.h"

static char top[64] = "/guest/tree";
static int directory, file, created, opened;
static char *mapped;

void guest_setup(void)
{
	CHECK(chdir("/guest/tree/in") == 0);
	directory = open(".", O_RDONLY | O_DIRECTORY);
	file = open("file", O_RDWR);
	CHECK(directory >= 0 && file >= 0 && ftruncate(file, 4096) == 0);
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(mapped != MAP_FAILED);
	created = inotify_init1(IN_NONBLOCK);
	opened = inotify_init1(IN_NONBLOCK);
	CHECK(inotify_add_watch(created, "/guest/tree/in", IN_CREATE) > 0);
	CHECK(inotify_add_watch(opened, "/guest/tree/in/untouched", IN_OPEN) > 0);
}

void guest_put(const char *tag)
{
	char to[sizeof(top)];

	snprintf(to, sizeof(to), "/guest/tree-%s", tag);
	CHECK(rename(top, to) == 0);
	strcpy(top, to);
	snprintf(mapped, TAG_SIZE, "%s", tag);
}

static void expect_file(int dir, const char *path, const char *content)
{
	int fd = openat(dir, path, O_RDONLY);
	char have[TAG_SIZE];

	CHECK(fd >= 0);
	guest_read_tag(fd, have);
	CHECK_TAG(have, content);
	close(fd);
}

/* One, and none of before or of another side. */
static void expect_event(int watches, uint32_t mask, void (*cause)(void))
{
	char bytes[sizeof(struct inotify_event) + NAME_MAX + 1];
	struct inotify_event event;

	CHECK(read(watches, bytes, sizeof(bytes)) < 0 && errno == EAGAIN);
	cause();
	CHECK(read(watches, bytes, sizeof(bytes)) >= (ssize_t)sizeof(event));
	memcpy(&event, bytes, sizeof(event));
	CHECK(event.mask == mask);
	CHECK(read(watches, bytes, sizeof(bytes)) < 0 && errno == EAGAIN);
}

static void create(void)
{
	int fd = openat(directory, "created", O_WRONLY | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0 && close(fd) == 0 && unlinkat(directory, "created", 0) == 0);
}

static void open_untouched(void)
{
	expect_file(directory, "untouched", "lower");
}

void guest_check(const char *tag)
{
	char path[128], have[PATH_MAX];
	struct stat open_one, named;

	snprintf(path, sizeof(path), "/guest/tree-%s/in", tag);
	CHECK(getcwd(have, sizeof(have)));
	CHECK_TAG(have, path);
	CHECK(stat(path, &named) == 0 && fstat(directory, &open_one) == 0 && named.st_ino == open_one.st_ino);
	CHECK(fstatat(directory, "file", &named, 0) == 0 && fstat(file, &open_one) == 0);
	CHECK(named.st_ino == open_one.st_ino && open_one.st_nlink == 1);
	expect_file(directory, "file", tag);
	expect_file(AT_FDCWD, "file", tag);
	CHECK_TAG(mapped, tag);
	expect_event(created, IN_CREATE, create);
	expect_event(opened, IN_OPEN, open_untouched);
}
