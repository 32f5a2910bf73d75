/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches on all that a desktop session watches: directories and files of a lower layer, of the upper one
 * and of /dev/shm, one renamed since, one whose other name is gone, a one-shot, many on one descriptor.
 */
#include <poll.h>
#include <sys/inotify.h>

#include "guest.h"

enum { LOWER_DIR, LOWER_FILE, SHM_DIR, RENAMED, LINKED, MANY, N_WATCHES = MANY + 40 };

static int notify, watches[N_WATCHES], oneshot;
static const char *const touched[] = {"/bin", "/etc/passwd", "/dev/shm", "/guest-watch/new", "/guest-watch/second"};

static void make(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);

	CHECK(fd >= 0);
	close(fd);
}

static void watch(int which, const char *path, uint32_t mask)
{
	watches[which] = inotify_add_watch(notify, path, mask);
	CHECK(watches[which] > 0);
}

void guest_setup(void)
{
	char path[64];

	CHECK(mkdir("/guest-watch", 0700) == 0);
	make("/guest-watch/old");
	make("/guest-watch/first");
	CHECK(link("/guest-watch/first", "/guest-watch/second") == 0);
	notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	CHECK(notify >= 0);
	watch(LOWER_DIR, "/bin", IN_ATTRIB);
	watch(LOWER_FILE, "/etc/passwd", IN_ATTRIB);
	watch(SHM_DIR, "/dev/shm", IN_ATTRIB);
	watch(RENAMED, "/guest-watch/old", IN_ATTRIB);
	CHECK(rename("/guest-watch/old", "/guest-watch/new") == 0);
	watch(LINKED, "/guest-watch/first", IN_ATTRIB);
	for (int i = MANY; i < N_WATCHES; i++) {
		snprintf(path, sizeof(path), "/guest-watch/dir-%d", i);
		CHECK(mkdir(path, 0700) == 0);
		watch(i, path, IN_CREATE);
	}
	/* The loss of a name is an event too. */
	CHECK(unlink("/guest-watch/first") == 0);
	while (read(notify, path, sizeof(path)) > 0)
		;
	oneshot = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	CHECK(oneshot >= 0);
}

void guest_put(const char *tag)
{
	(void)tag;
	CHECK(inotify_add_watch(oneshot, "/guest-watch", IN_CREATE | IN_ONESHOT | IN_ONLYDIR) > 0);
}

/* The next event, which must be of this watch. */
static void expect(int fd, int wanted, const char *name)
{
	char buffer[sizeof(struct inotify_event) + 256];
	struct inotify_event *event = (struct inotify_event *)buffer;
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	ssize_t n;

	/* One event a time: each read is for the very next step. */
	CHECK(poll(&ready, 1, 10000) == 1);
	n = read(fd, buffer, sizeof(buffer));
	CHECK(n >= (ssize_t)sizeof(*event));
	if (wanted > 0 && event->wd != wanted)
		FAIL("event of watch %d instead of %d", event->wd, wanted);
	if (name)
		CHECK_TAG(event->name, name);
}

void guest_check(const char *tag)
{
	char path[96], byte;

	CHECK(read(notify, &byte, 1) < 0 && errno == EAGAIN);
	for (int i = 0; i < MANY; i++) {
		CHECK(chmod(touched[i], i == LOWER_FILE ? 0644 : 0755) == 0);
		expect(notify, watches[i], NULL);
	}
	for (int i = MANY; i < N_WATCHES; i++) {
		snprintf(path, sizeof(path), "/guest-watch/dir-%d/%s", i, tag);
		make(path);
		expect(notify, watches[i], tag);
		CHECK(unlink(path) == 0);
	}
	snprintf(path, sizeof(path), "/guest-watch/%s", tag);
	make(path);
	expect(oneshot, 0, tag);
	CHECK(unlink(path) == 0);
	CHECK(read(notify, &byte, 1) < 0 && errno == EAGAIN);
}
