// SPDX-License-Identifier: GPL-2.0-only
/* What the device says of itself, and what it makes of requests that are wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/capability.h>
#include <unistd.h>

#include "harness.h"

static long make_page(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 4 * PAGE, 0), 4 * PAGE, 1);
	return 0;
}

static void test_info(void)
{
	struct bunshin_info info = { .size = sizeof(info) };
	int fd = device_open();

	CHECK(!ioctl(fd, BUNSHIN_INFO, &info), "%m");
	CHECK_IS(info.abi, BUNSHIN_ABI);
	CHECK_IS(info.features, BUNSHIN_FEATURE_COW_RANGE | BUNSHIN_FEATURE_DETACH);
	CHECK(info.version[0] && memchr(info.version, 0, sizeof(info.version)), "no version");
	CHECK(ioctl(fd, BUNSHIN_INFO, &info) && errno == EINVAL, "fields that are out were taken in");
	CHECK(ioctl(fd, _IO(BUNSHIN_IOC_MAGIC, 99), 0) && errno == ENOTTY, "%m");
}

static void test_sizes(void)
{
	struct {
		struct bunshin_cow_range request;
		uint64_t later;
	} larger;
	struct source s;

	source_start(&s);
	source_call(&s, make_page, NULL);
	larger.request = request_for(&s, ZONE, PAGE);
	larger.later = 0;

	larger.request.size = sizeof(struct bunshin_cow_range) - 8;
	CHECK_IS(pull_request(&larger.request), -EINVAL);
	larger.request.size = 0;
	CHECK_IS(pull_request(&larger.request), -EINVAL);
	larger.request.size = sizeof(larger);
	larger.later = 1;
	CHECK_IS(pull_request(&larger.request), -E2BIG);
	larger.later = 0;
	CHECK_IS(pull_request(&larger.request), 0);
	CHECK(filled(ZONE, PAGE, 1), "content");
}

static void test_bad_fields(void)
{
	struct bunshin_cow_range good, bad;
	struct source s;

	source_start(&s);
	source_call(&s, make_page, NULL);
	good = request_for(&s, ZONE, PAGE);
#define REFUSED(error, ...)                        \
	do {                                       \
		bad = good;                        \
		__VA_ARGS__;                       \
		CHECK_IS(pull_request(&bad), -error); \
	} while (0)
	REFUSED(EINVAL, bad.flags = 1U << 31);
	REFUSED(EINVAL, bad.reserved = 1);
	REFUSED(EINVAL, bad.refusal = 1);
	REFUSED(EINVAL, bad.refused_at = 1);
	REFUSED(EINVAL, bad.length = 0);
	REFUSED(EINVAL, bad.length = 100);
	REFUSED(EINVAL, bad.start += 8);
	REFUSED(EINVAL, bad.length = -PAGE);
	REFUSED(EINVAL, bad.start = 0xffff800000000000UL);
	REFUSED(EINVAL, bad.length = 1UL << 60);
	REFUSED(EBADF, bad.pidfd = -1);
	REFUSED(EBADF, bad.pidfd = 0);
	REFUSED(EINVAL, bad.pidfd = syscall(SYS_pidfd_open, getpid(), 0));
#undef REFUSED
	CHECK_IS(ioctl(device_open(), BUNSHIN_COW_RANGE, NULL), -1);
	CHECK_IS(errno, EFAULT);
	CHECK_IS(pull_request(&good), 0);
}

static void test_dead_source(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_page, NULL);
	CHECK(!kill(s.pid, SIGKILL), "%m");
	/* A zombie first, then nothing at all. */
	CHECK(!waitid(P_PID, s.pid, NULL, WEXITED | WNOWAIT), "%m");
	CHECK_IS(pull(&s, ZONE, PAGE, 0), -ESRCH);
	CHECK_IS(waitpid(s.pid, NULL, 0), s.pid);
	CHECK_IS(pull(&s, ZONE, PAGE, 0), -ESRCH);
}

static long open_as_user(void *arg)
{
	(void)arg;
	return open(BUNSHIN_DEVICE, O_RDWR | O_CLOEXEC) < 0 ? -errno : 0;
}

static long open_without_ptrace(void *arg)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	CHECK(!syscall(SYS_capget, &header, data), "%m");
	data[0].effective &= ~(1U << CAP_SYS_PTRACE);
	CHECK(!syscall(SYS_capset, &header, data), "%m");
	return open_as_user(arg);
}

static void test_who_may_open(void)
{
	struct source user, root;
	struct stat st;

	CHECK(!stat(BUNSHIN_DEVICE, &st), "%m");
	CHECK_IS(st.st_mode & 0777, 0600);
	source_start_as(&user, 65534);
	source_start(&root);
	CHECK_IS(source_call(&user, open_as_user, NULL), -EACCES);
	CHECK_IS(source_call(&root, open_as_user, NULL), 0);
	CHECK_IS(source_call(&root, open_without_ptrace, NULL), -EPERM);
	CHECK(!chmod(BUNSHIN_DEVICE, 0666), "%m");
	CHECK_IS(source_call(&user, open_as_user, NULL), -EPERM);
	CHECK(!chmod(BUNSHIN_DEVICE, 0600), "%m");
}

const struct test abi_tests[] = {
	{ "info", test_info },
	{ "sizes", test_sizes },
	{ "bad-fields", test_bad_fields },
	{ "dead-source", test_dead_source },
	{ "who-may-open", test_who_may_open },
	{},
};
