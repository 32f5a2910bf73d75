// SPDX-License-Identifier: GPL-2.0-only
/* Who may come, go, stand still, or run on, while memory is shared. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define PAGES 64UL

static long make(void *arg)
{
	fill(map_at(ZONE, PAGES * PAGE, 0), PAGES * PAGE, (uintptr_t)arg);
	return 0;
}

static void test_source_dies(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make, (void *)1);
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	source_kill(&s);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
	fill(ZONE, PAGES * PAGE, 2);
	CHECK(filled(ZONE, PAGES * PAGE, 2), "content after writing");
}

static long pull_here(void *arg)
{
	return pull_pid((uintptr_t)arg, ZONE, PAGES * PAGE);
}

static long mark(void *arg)
{
	fill(ZONE + (uintptr_t)arg * PAGE, PAGE, 1000 + (uintptr_t)arg);
	return 0;
}

static long check_link(void *arg)
{
	unsigned long depth = (uintptr_t)arg;
	char page[PAGE * PAGES];

	fill(page, sizeof(page), 1);
	for (unsigned long i = 0; i < depth; i++)
		if (!filled(ZONE + i * PAGE, PAGE, 1000 + i))
			return 0;
	return !memcmp(ZONE + depth * PAGE, page + depth * PAGE, (PAGES - depth) * PAGE);
}

/* Each pulls from the one before and writes one page; half of the origins die on the way. */
static void test_chain(void)
{
	struct source link[11];

	source_start(&link[0]);
	source_call(&link[0], make, (void *)1);
	for (unsigned long i = 0; i < 10; i++) {
		source_call(&link[i], mark, (void *)i);
		source_start(&link[i + 1]);
		CHECK_IS(source_call(&link[i + 1], pull_here, (void *)(long)link[i].pid), 0);
		if (i % 2)
			source_kill(&link[i]);
	}
	for (unsigned long i = 0; i <= 10; i += 2)
		CHECK(source_call(&link[i], check_link, (void *)(i + (i < 10))), "link %lu", i);
}

static void test_unprivileged_source(void)
{
	struct source s;

	source_start_as(&s, 65534);
	source_call(&s, make, (void *)1);
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
}

static void *outlive(void *arg)
{
	char byte = 0;

	make((void *)1);
	CHECK(write(*(int *)arg, &byte, 1) == 1, "%m");
	pause();
	return NULL;
}

/* A process whose first thread has exited still has memory. */
static void test_dead_leader(void)
{
	static int ready[2];
	struct source s = { .sock = -1 };
	char byte, state[512] = "";
	char path[64];

	CHECK(!pipe(ready), "%m");
	s.pid = fork();
	if (!s.pid) {
		pthread_t thread;

		CHECK(!pthread_create(&thread, NULL, outlive, &ready[1]), "%m");
		pthread_detach(thread);
		syscall(SYS_exit, 0);
	}
	s.pidfd = syscall(SYS_pidfd_open, s.pid, 0);
	CHECK(read(ready[0], &byte, 1) == 1, "%m");
	snprintf(path, sizeof(path), "/proc/%d/stat", s.pid);
	while (!strstr(state, ") Z ")) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		CHECK(fd >= 0 && read(fd, state, sizeof(state) - 1) > 0, "%m");
		close(fd);
		sched_yield();
	}
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
	kill(s.pid, SIGKILL);
}

static void test_stopped(void)
{
	struct source s;
	int status;

	source_start(&s);
	source_call(&s, make, (void *)1);
	CHECK(!kill(s.pid, SIGSTOP), "%m");
	CHECK(waitpid(s.pid, &status, WUNTRACED) == s.pid && WIFSTOPPED(status), "%m");
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
	CHECK(!kill(s.pid, SIGCONT), "%m");
	CHECK_IS(source_call(&s, mark, (void *)1), 0);
}

static void test_frozen(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make, (void *)1);
	cgroup_make("frozen");
	cgroup_enter("frozen", s.pid);
	write_file(cgroup_file("frozen", "cgroup.freeze"), "1");
	while (!number_in(cgroup_file("frozen", "cgroup.events"), "frozen"))
		sched_yield();
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	write_file(cgroup_file("frozen", "cgroup.freeze"), "0");
	CHECK_IS(source_call(&s, mark, (void *)1), 0);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
	source_kill(&s);
	CHECK(!rmdir(cgroup_file("frozen", "")), "%m");
}

#define SECOND (ZONE + (1UL << 30))

static long make_second(void *arg)
{
	(void)arg;
	fill(map_at(SECOND, PAGES * PAGE, 0), PAGES * PAGE, 2);
	return 0;
}

static long pull_many(pid_t pid, char *at)
{
	for (int i = 0; i < 500; i++) {
		int rc = pull_pid(pid, at, PAGES * PAGE);

		if (rc)
			return rc;
		CHECK(!munmap(at, PAGES * PAGE), "%m");
	}
	return 0;
}

static long pull_first_many(void *arg)
{
	return pull_many((uintptr_t)arg, ZONE);
}

static long pull_second_many(void *arg)
{
	return pull_many((uintptr_t)arg, SECOND);
}

/* Two that pull from each other at the same time must not wait for each other for ever. */
static void test_mutual(void)
{
	struct source one, two;

	source_start(&one);
	source_start(&two);
	source_call(&one, make, (void *)1);
	source_call(&two, make_second, NULL);
	source_begin(&one, pull_second_many, (void *)(long)two.pid);
	source_begin(&two, pull_first_many, (void *)(long)one.pid);
	CHECK_IS(source_wait(&one), 0);
	CHECK_IS(source_wait(&two), 0);
}

/* The puller ends in the middle of many pulls. */
static long pull_for_ever(void *arg)
{
	struct source *s = arg;

	while (!pull(s, ZONE, PAGES * PAGE, 0))
		munmap(ZONE, PAGES * PAGE);
	return -1;
}

static void test_puller_dies(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make, (void *)1);
	for (int i = 0; i < 20; i++) {
		int ready[2];
		pid_t pid;
		char byte = 0;
		int status;

		CHECK(!pipe(ready), "%m");
		pid = fork();
		if (!pid) {
			CHECK(write(ready[1], &byte, 1) == 1, "%m");
			pull_for_ever(&s);
			_exit(1);
		}
		CHECK(read(ready[0], &byte, 1) == 1, "%m");
		close(ready[0]);
		close(ready[1]);
		CHECK(!kill(pid, SIGKILL), "%m");
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "the puller ended by itself");
	}
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
}

static bool module_unload(void)
{
	if (!syscall(SYS_delete_module, "bunshin", O_NONBLOCK))
		return true;
	CHECK(errno == EAGAIN, "%m");
	return false;
}

static void module_load(void)
{
	int fd = open("/bunshin.ko", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && !syscall(SYS_finit_module, fd, "untested=1", 0), "%m");
	close(fd);
}

/* An open descriptor keeps the module; shared memory does not need it. */
static void test_unload(void)
{
	struct bunshin_cow_range request;
	struct source s;
	int device;

	source_start(&s);
	source_call(&s, make, (void *)1);
	device = device_open();
	request = request_for(&s, ZONE, PAGES * PAGE);
	CHECK(!ioctl(device, BUNSHIN_COW_RANGE, &request), "%m");
	CHECK(!module_unload(), "unloaded while it was open");
	close(device);
	CHECK(module_unload(), "still in use after the last close");
	CHECK(access(BUNSHIN_DEVICE, F_OK), "the device is still there");
	CHECK(filled(ZONE, PAGES * PAGE, 1), "content");
	source_call(&s, mark, (void *)1);
	CHECK(filled(ZONE, PAGES * PAGE, 1), "the source's write is seen");
	source_kill(&s);
	fill(ZONE, PAGES * PAGE, 2);
	CHECK(!munmap(ZONE, PAGES * PAGE), "%m");
	module_load();
	close(device_open());
}

const struct test life_tests[] = {
	{ "source-dies", test_source_dies },
	{ "chain-of-10", test_chain },
	{ "unprivileged-source", test_unprivileged_source },
	{ "dead-leader", test_dead_leader },
	{ "stopped-source", test_stopped },
	{ "frozen-source", test_frozen },
	{ "mutual-pulls", test_mutual },
	{ "puller-dies", test_puller_dies },
	{ "unload", test_unload },
	{},
};
