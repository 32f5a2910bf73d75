/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers and what needs no privilege. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/text.h"
#include "check.h"
#include "host/cgroup.h"
#include "host/features.h"
#include "host/pagemap.h"
#include "host/procfs.h"
#include "host/spawn.h"
#include "host/trace.h"
#include "registry.h"

int failures;

static void test_stat(void)
{
	struct bsh_proc_stat stat;

	CHECK(bsh_proc_stat_parse(
		      "71 (a) b (c)) S 1 70 69 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 9 0 12345678901 1 2", &stat) == 0);
	CHECK(stat.pid == 71 && stat.parent == 1 && stat.group == 70 && stat.session == 69);
	CHECK(stat.state == 'S' && stat.n_threads == 9 && stat.start_time == 12345678901ULL);
	CHECK_TEXT(stat.comm, "a) b (c)");
	CHECK(!stat.exiting);
	CHECK(bsh_proc_stat_parse("71 (x) S 1 70 69 0 -1 4194564 1 0 0 0 1 2 3 4 20 0 9 0 1 1 2", &stat) == 0);
	CHECK(stat.exiting);
	CHECK(bsh_proc_stat_parse("", &stat) == -EINVAL);
	CHECK(bsh_proc_stat_parse("71 (x", &stat) == -EINVAL);
	CHECK(bsh_proc_stat_parse("71 (x) S 1", &stat) == -EINVAL);
	CHECK(bsh_proc_stat_parse("71 )x( S 1 2 3", &stat) == -EINVAL);
}

static void test_status(void)
{
	const char *text = "Name:\tx\nThreads:\t3\nTracerPid:\t9\nUid:\t1\t1000\t1\t1\nVmPTE:\t     40 kB\n"
			   "NSpid:\t71\t5\t1\nCapEff:\t00000000000405fb\nSeccomp:\t2\n";
	struct bsh_proc_status status;

	CHECK(bsh_proc_status_parse(text, &status) == 0);
	CHECK(status.tracer == 9 && status.threads == 3 && status.uid == 1000 && status.seccomp == 2);
	CHECK(status.page_table_bytes == 40 * 1024 && status.effective_caps == 0x405fb);
	CHECK(status.n_namespaces == 3 && status.inner_pid == 1);
	CHECK(bsh_proc_status_parse("Name:\tx\n", &status) == -EINVAL);
	/* A name that looks like another line's beginning. */
	CHECK(bsh_proc_status_parse("Name:\tUid:\nUid:\t0\t0\t0\t0", &status) == 0 && status.uid == 0);
}

static void test_maps(void)
{
	const char *text = "5500-5600 r-xp 00001000 fe:01 42                 /usr/bin/a b (deleted)\n"
			   "7f0000000000-7ff000000000 ---p 00000000 00:00 0 \n"
			   "ffffffffff600000-ffffffffff601000 --xs 0 00:00 0 [vsyscall]";
	const char *cursor = text;
	struct bsh_vma vma;

	CHECK(bsh_maps_next(&cursor, &vma) == 1);
	CHECK(vma.start == 0x5500 && vma.end == 0x5600 && vma.offset == 0x1000 && vma.inode == 42);
	CHECK(vma.flags == (BSH_VMA_READ | BSH_VMA_EXEC) && vma.dev_major == 0xfe && vma.dev_minor == 1);
	CHECK(vma.name_len == strlen("/usr/bin/a b (deleted)") &&
		strncmp(vma.name, "/usr/bin/a b (deleted)", vma.name_len) == 0);
	CHECK(bsh_maps_next(&cursor, &vma) == 1 && vma.name_len == 0 && vma.flags == 0);
	CHECK(bsh_maps_next(&cursor, &vma) == 1 && vma.flags == (BSH_VMA_EXEC | BSH_VMA_SHARED));
	CHECK(bsh_maps_next(&cursor, &vma) == 0);
	cursor = "nonsense\n";
	CHECK(bsh_maps_next(&cursor, &vma) == -EINVAL);
	cursor = "20-10 r--p 0 0:0 0\n";
	CHECK(bsh_maps_next(&cursor, &vma) == -EINVAL);
	/* A broken line must not be completed from the next one. */
	cursor = "10-20 r--p\n10-20 r--p 0 0:0 0\n";
	CHECK(bsh_maps_next(&cursor, &vma) == -EINVAL);
}

/* Whatever the text, the parsers stay within it. */
static void test_damaged_text(void)
{
	const char *whole =
		"71 (a b) S 1 70 69 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 9 0 123 1\n5500-5600 r-xp 00001000 fe:01 42 /a\n"
		"Uid:\t0\t0\nNSpid:\t1\t2\nid=a\nowner=1 2 b\nlayer=/x\\n\\\n";
	unsigned int seed = 1;

	for (int round = 0; round < 20000; round++) {
		size_t len = strlen(whole);
		auto_free char *text = bsh_strdup(whole);
		const char *cursor = text;
		struct bsh_features features = {0};
		struct bsh_proc_status status;
		struct bsh_record record;
		struct bsh_proc_stat stat;
		struct bsh_vma vma;

		for (int change = 0; change < 4; change++)
			text[(size_t)rand_r(&seed) % len] = (char)(rand_r(&seed) % 128);
		bsh_proc_stat_parse(text, &stat);
		bsh_proc_status_parse(text, &status);
		while (bsh_maps_next(&cursor, &vma) > 0)
			;
		if (bsh_record_parse(text, &record, NULL) == 0)
			bsh_record_release(&record);
		bsh_features_parse_mounts(text, &features);
	}
}

static void test_mounts(void)
{
	const char *text = "30 1 0:26 / /sys/fs/cgroup/cpu\\040all rw - cgroup cgroup rw,cpu,cpuacct\n"
			   "31 1 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup memory rw,memory\n"
			   "32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
			   "33 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
			   "35 1 0:31 / /sys/fs/cgroup/disks rw - cgroup cgroup rw,blkio\n"
			   "34 1 0:30 / /mnt/again rw - cgroup2 cgroup2 rw\nbroken line\n";
	struct bsh_features features = {0};

	bsh_features_parse_mounts(text, &features);
	CHECK_TEXT(features.cgroup_v1_cpu, "/sys/fs/cgroup/cpu all");
	CHECK_TEXT(features.cgroup_v1_memory, "/sys/fs/cgroup/memory");
	CHECK_TEXT(features.cgroup_v2, "/sys/fs/cgroup/unified");
	CHECK_TEXT(features.cgroup_v1_blkio, "/sys/fs/cgroup/disks");
	CHECK(!features.cgroup_v1_freezer && !features.cgroup_v1_pids);
	free(features.cgroup_v1_blkio);
	free(features.cgroup_v1_cpu);
	free(features.cgroup_v1_memory);
	free(features.cgroup_v2);
}

static void write_files(const char *dir, const char *const *names)
{
	for (; *names; names++) {
		auto_free char *path = bsh_format("%s/w/%s", dir, *names);
		auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

		CHECK(fd >= 0);
	}
}

static void check_file(const char *dir, const char *name, const char *expected)
{
	auto_free char *path = bsh_format("%s/w/%s", dir, name), *text = NULL;

	CHECK(bsh_read_file(AT_FDCWD, path, &text, NULL, NULL) == 0);
	CHECK_TEXT(text, expected);
	unlink(path);
}

/* Plain files in the place of the kernel's: what is written where, on either kind of machine. */
static void test_weights(void)
{
	const char *v1[] = {"cpu.shares", "cpu.idle", "blkio.bfq.weight", NULL};
	const char *v2[] = {"cpu.weight", "io.weight", "io.bfq.weight", NULL};
	char dir[] = "/tmp/bunshin-weights-XXXXXX";
	auto_free char *group = NULL;
	struct bsh_features features = {0};
	struct bsh_error err = {0};

	CHECK(mkdtemp(dir) != NULL);
	group = bsh_format("%s/w", dir);
	CHECK(mkdir(group, 0700) == 0);
	CHECK(bsh_cgroup_weigh(&features, "w", 1, 1, &err) == -EOPNOTSUPP && strstr(err.msg, "CPU"));
	CHECK(bsh_cgroup_weigh(&features, "w", 0, 1, &err) == 0);

	features.cgroup_v1_cpu = features.cgroup_v1_blkio = dir;
	write_files(dir, v1);
	CHECK(bsh_cgroup_weigh(&features, "w", BSH_WEIGHT_IDLE, 1, &err) == 0);
	check_file(dir, "cpu.shares", "10");
	check_file(dir, "cpu.idle", "1");
	check_file(dir, "blkio.bfq.weight", "10");

	features.cgroup_v2 = dir;
	features.v2_cpu = features.v2_io = true;
	write_files(dir, v2);
	CHECK(bsh_cgroup_weigh(&features, "w", 200, 2000, &err) == 0); /* a kernel without cpu.idle */
	check_file(dir, "cpu.weight", "200");
	check_file(dir, "io.weight", "2000");
	check_file(dir, "io.bfq.weight", "1000");
	CHECK(bsh_cgroup_weigh(&features, "w", 100, 0, &err) == -ENOENT);
	CHECK(rmdir(group) == 0 && rmdir(dir) == 0);
}

static void test_record(void)
{
	const char *const layers[] = {"/l/one", "/l/with\nnewline\\n", NULL}, *const env[] = {"A=1\n2", "B=\\", NULL};
	struct bsh_record parsed, record = {
					  .id = "0123456789ab",
					  .owner = {5, 77, "boot"},
					  .layers = (char **)layers,
					  .env = (char **)env,
					  .label = "{\"a\": \"=\"}",
					  .memory_max_bytes = 1ULL << 40,
					  .created_ns = -5,
				  };
	auto_free char *text = bsh_record_format(&record), *again = NULL;
	struct bsh_error err;

	CHECK(bsh_record_parse(text, &parsed, &err) == 0);
	again = bsh_record_format(&parsed);
	CHECK_TEXT(text, again);
	CHECK_TEXT(parsed.layers[1], layers[1]);
	CHECK_TEXT(parsed.env[0], env[0]);
	CHECK_TEXT(parsed.env[1], env[1]);
	CHECK(parsed.owner.pid == 5 && parsed.owner.start_time == 77 && parsed.init.pid == 0 && !parsed.parent);
	CHECK(parsed.memory_max_bytes == 1ULL << 40 && parsed.created_ns == -5);
	bsh_record_release(&parsed);
	CHECK(bsh_record_parse("id=a\n", &parsed, &err) == -EINVAL);
	CHECK(bsh_record_parse("id=a\nowner=x\n", &parsed, &err) == -EINVAL);
	CHECK(bsh_record_parse("", &parsed, &err) == -EINVAL);
	CHECK(bsh_record_parse("id=a\nowner=1 2 b\nfuture=1\n", &parsed, &err) == 0);
	bsh_record_release(&parsed);
}

static void test_owner(void)
{
	struct bsh_owner self, other;
	struct bsh_error err;

	CHECK(bsh_owner_self(&self, &err) == 0 && self.pid == getpid() && bsh_owner_alive(&self));
	other = self;
	other.start_time++;
	CHECK(!bsh_owner_alive(&other));
	other = self;
	other.boot_id[0] ^= 1;
	CHECK(!bsh_owner_alive(&other));
	CHECK(!bsh_owner_alive(&(struct bsh_owner){0}));
}

static void child_value(void *context, int report_fd)
{
	bsh_report_done(report_fd, *(int *)context);
}

static void child_failure(void *context, int report_fd)
{
	(void)context;
	bsh_report_exit(report_fd, ENOSPC, "make room");
}

static void child_silence(void *context, int report_fd)
{
	(void)context;
	(void)report_fd;
	_exit(3);
}

static int run_child(bsh_child_main main, int *ret_value, int *ret_status, struct bsh_error *err)
{
	auto_close int pidfd = -1, report_fd = -1;
	int context = 42, rc;
	pid_t pid;

	CHECK(bsh_spawn(main, &context, 0, &pid, &pidfd, &report_fd, err) == 0);
	/* It is no child for those who wait for any. */
	CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
	rc = bsh_report_read(report_fd, pidfd, ret_value, err);
	CHECK(bsh_wait_pidfd(pidfd, 10000, ret_status) == 0);
	return rc;
}

static void test_children(void)
{
	struct bsh_error err = {0};
	int value = 0, status = 0;

	CHECK(run_child(child_value, &value, &status, &err) == 0 && value == 42 && status == 0);
	CHECK(run_child(child_failure, &value, &status, &err) == -ENOSPC);
	CHECK_TEXT(err.msg, "make room: No space left on device");
	CHECK(run_child(child_silence, &value, &status, &err) == -EPROTO);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static int count_pages(void *context, uint64_t address, const uint64_t *entries, size_t n)
{
	(void)address;
	for (size_t i = 0; i < n; i++)
		*(size_t *)context += !!(entries[i] & BSH_PAGE_PRESENT);
	return 0;
}

/* A terabyte reserved, three pages in it. */
static void test_pagemap(void)
{
	const size_t size = (size_t)1 << 40;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	const struct bsh_features *features = NULL;
	auto_close int fd = -1;
	struct bsh_error err;
	size_t n = 0;

	CHECK(memory != MAP_FAILED && bsh_features_get(&features, &err) == 0);
	madvise(memory, size, MADV_NOHUGEPAGE);
	memory[0] = memory[size / 2] = memory[size - 1] = 1;
	CHECK(bsh_pagemap_open(getpid(), &fd, &err) == 0);
	if (features && features->pagemap_scan) {
		CHECK(bsh_pagemap_walk(fd, (uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + size, count_pages,
			      &n, &err) == 0);
		CHECK(n == 3);
	}
	munmap(memory, size);
}

static void test_trace(void)
{
	struct bsh_fork_stats stats = {0};
	struct bsh_trace trace;
	int outer, inner;

	bsh_trace_start(&trace);
	outer = bsh_trace_begin(&trace, "a name longer than what fits into it");
	inner = bsh_trace_begin(&trace, "inner");
	bsh_trace_end(&trace, inner);
	bsh_trace_end(&trace, outer);
	for (int i = 0; i < 100; i++)
		bsh_trace_end(&trace, bsh_trace_begin(&trace, "more"));
	bsh_trace_report(&trace, &stats);
	CHECK(stats.n_phases == 32 && stats.total_ns > 0);
	CHECK_TEXT(stats.phases[0].name, "a name longer than what");
	CHECK(stats.phases[0].length_ns >= stats.phases[1].length_ns);
	CHECK(bsh_trace_begin(NULL, "nobody") == -1);
	bsh_trace_end(NULL, 0);
}

int main(void)
{
	test_stat();
	test_status();
	test_maps();
	test_damaged_text();
	test_mounts();
	test_weights();
	test_record();
	test_owner();
	test_children();
	test_pagemap();
	test_trace();
	return failures != 0;
}
