// SPDX-License-Identifier: GPL-2.0-only
#define _GNU_SOURCE
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_SKIPPED 77

struct call {
	source_fn *fn;
	void *arg;
};

void fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("  %s:%d: ", file, line);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

void skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("  skipped: ");
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	_exit(EXIT_SKIPPED);
}

static _Noreturn void source_serve(int sock, uid_t uid)
{
	struct call call;

	if (uid) {
		CHECK(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid), "%m");
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(sock, &call, sizeof(call)) == sizeof(call)) {
		long result = call.fn(call.arg);

		if (write(sock, &result, sizeof(result)) != sizeof(result))
			break;
	}
	_exit(0);
}

void source_start_as(struct source *s, uid_t uid)
{
	int socks[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks), "%m");
	fflush(stdout);
	s->pid = fork();
	CHECK(s->pid >= 0, "%m");
	if (!s->pid) {
		close(socks[0]);
		source_serve(socks[1], uid);
	}
	close(socks[1]);
	s->sock = socks[0];
	s->pidfd = syscall(SYS_pidfd_open, s->pid, 0);
	CHECK(s->pidfd >= 0, "%m");
}

void source_start(struct source *s)
{
	source_start_as(s, 0);
}

void source_begin(struct source *s, source_fn *fn, void *arg)
{
	struct call call = { fn, arg };

	CHECK(write(s->sock, &call, sizeof(call)) == sizeof(call), "%m");
}

long source_wait(struct source *s)
{
	long result;

	CHECK(read(s->sock, &result, sizeof(result)) == sizeof(result), "the source has died");
	return result;
}

long source_call(struct source *s, source_fn *fn, void *arg)
{
	source_begin(s, fn, arg);
	return source_wait(s);
}

void source_kill(struct source *s)
{
	CHECK(!kill(s->pid, SIGKILL), "%m");
	CHECK_IS(waitpid(s->pid, NULL, 0), s->pid);
	close(s->sock);
	close(s->pidfd);
}

int device_open(void)
{
	int fd = open(BUNSHIN_DEVICE, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0, "%s: %m", BUNSHIN_DEVICE);
	return fd;
}

int pull_request(struct bunshin_cow_range *request)
{
	static int device = -1;

	if (device < 0)
		device = device_open();
	return ioctl(device, BUNSHIN_COW_RANGE, request) ? -errno : 0;
}

struct bunshin_cow_range request_for(const struct source *s, void *start, size_t length)
{
	return (struct bunshin_cow_range){
		.size = sizeof(struct bunshin_cow_range),
		.pidfd = s->pidfd,
		.start = (uintptr_t)start,
		.length = length,
	};
}

int pull(const struct source *s, void *start, size_t length, unsigned int flags)
{
	struct bunshin_cow_range request = request_for(s, start, length);

	request.flags = flags;
	return pull_request(&request);
}

int pull_pid(pid_t pid, void *start, size_t length)
{
	struct source s = { .pid = pid, .pidfd = syscall(SYS_pidfd_open, pid, 0) };
	int rc;

	CHECK(s.pidfd >= 0, "%m");
	rc = pull(&s, start, length, 0);
	close(s.pidfd);
	return rc;
}

char *map_at(void *at, size_t length, int flags)
{
	char *got = mmap(at, length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | flags, -1, 0);

	CHECK(got == at, "mmap at %p: %m", at);
	return got;
}

static uint64_t word(const void *at, uint64_t seed)
{
	return ((uintptr_t)at + seed * 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL | 1;
}

void fill(void *start, size_t length, uint64_t seed)
{
	for (uint64_t *at = start; (char *)at < (char *)start + length; at++)
		*at = word((char *)at - (uintptr_t)start, seed);
}

bool filled(const void *start, size_t length, uint64_t seed)
{
	for (const uint64_t *at = start; (const char *)at < (const char *)start + length; at++)
		if (*at != word((const char *)at - (uintptr_t)start, seed))
			return false;
	return true;
}

long number_in(const char *path, const char *key)
{
	char line[512];
	FILE *file = fopen(path, "re");

	CHECK(file, "%s: %m", path);
	while (fgets(line, sizeof(line), file)) {
		size_t n = strlen(key);

		if (strncmp(line, key, n) || (line[n] != ':' && line[n] != ' '))
			continue;
		fclose(file);
		return strtol(line + n + 1, NULL, 10);
	}
	fail(path, 0, "no %s in it", key);
}

long number_of(const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0, "%s: %m", path);
	close(fd);
	return strtol(text, NULL, 10);
}

void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0, "%s: %m", path);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s <- %s: %m", path, text);
	close(fd);
}

uint64_t pagemap(pid_t pid, const void *at)
{
	char path[64];
	uint64_t entry;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0, "%s: %m", path);
	CHECK(pread(fd, &entry, sizeof(entry), (uintptr_t)at / PAGE * sizeof(entry)) == sizeof(entry), "%m");
	close(fd);
	return entry;
}

char *cgroup_file(const char *name, const char *file)
{
	static char path[4][256];
	static unsigned int turn;
	char *to = path[turn++ % 4];

	snprintf(to, sizeof(path[0]), "/sys/fs/cgroup/%s/%s", name, file);
	return to;
}

void cgroup_make(const char *name)
{
	CHECK(!mkdir(cgroup_file(name, ""), 0755) || errno == EEXIST, "cgroup %s: %m", name);
}

void cgroup_enter(const char *name, pid_t pid)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", pid);
	write_file(cgroup_file(name, "cgroup.procs"), text);
}

static int run_one(const struct test *test)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		/* A test that hangs ends here; the processor is an emulated one. */
		alarm(getenv("KMODTEST_SECONDS") ? atoi(getenv("KMODTEST_SECONDS")) : 180);
		test->run();
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	if (WIFSIGNALED(status))
		printf("  killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED)
		printf("SKIP %s\n", test->name);
	else
		printf("%s %s\n", status ? "FAIL" : "PASS", test->name);
	fflush(stdout);
	return status && !(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED);
}

static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(name, argv[i]))
			return true;
	return argc < 2;
}

/* kmodtest [NAME...]: the named tests, or all; exits with the number that failed. */
int main(int argc, char **argv)
{
	const struct test *const groups[] = {
		abi_tests,  kind_tests,   refusal_tests, isolation_tests,
		life_tests, memory_tests, race_tests,
	};
	int failed = 0, ran = 0;

	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
		for (const struct test *test = groups[g]; test->name; test++) {
			if (!wanted(test->name, argc, argv))
				continue;
			failed += run_one(test);
			ran++;
		}
	}
	if (argc > 1 && ran != argc - 1) {
		printf("FAIL no-such-test\n");
		failed++;
	}
	return failed > 100 ? 100 : failed;
}
