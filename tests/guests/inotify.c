/* SPDX-License-Identifier: Apache-2.0 */
/* Watches on directory and file of the overlay: an event is seen where it happened, and only there. */
#include <sys/inotify.h>

#include "guest.h"

static int notify, directory, file;

void guest_setup(void)
{
	int fd;

	CHECK(mkdir("/guest-watched", 0700) == 0);
	fd = open("/guest-watched/file", O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0);
	close(fd);
	notify = inotify_init1(IN_NONBLOCK);
	directory = inotify_add_watch(notify, "/guest-watched", IN_CREATE | IN_DELETE);
	file = inotify_add_watch(notify, "/guest-watched/file", IN_MODIFY);
	CHECK(notify >= 0 && directory > 0 && file > 0);
}

void guest_put(const char *tag)
{
	(void)tag;
}

static void expect(int watch, uint32_t mask, const char *name)
{
	union {
		struct inotify_event event;
		char bytes[512];
	} buffer;
	static size_t at, have;
	static char pending[4096];

	if (at == have) {
		ssize_t n = read(notify, pending, sizeof(pending));

		CHECK(n > 0);
		at = 0;
		have = (size_t)n;
	}
	memcpy(&buffer, pending + at, sizeof(struct inotify_event));
	memcpy(&buffer, pending + at, sizeof(struct inotify_event) + buffer.event.len);
	at += sizeof(struct inotify_event) + buffer.event.len;
	CHECK(buffer.event.wd == watch && buffer.event.mask == mask);
	if (name)
		CHECK_TAG(buffer.event.name, name);
}

void guest_check(const char *tag)
{
	char path[64], byte;
	int fd;

	/* No event of another side. */
	CHECK(read(notify, &byte, 1) < 0 && errno == EAGAIN);
	snprintf(path, sizeof(path), "/guest-watched/%s", tag);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0);
	close(fd);
	CHECK(unlink(path) == 0);
	fd = open("/guest-watched/file", O_WRONLY);
	guest_write_tag(fd, tag);
	close(fd);
	expect(directory, IN_CREATE, tag);
	expect(directory, IN_DELETE, tag);
	expect(file, IN_MODIFY, NULL);
}
