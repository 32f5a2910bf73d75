// SPDX-License-Identifier: GPL-2.0-only
/*
 * What it costs to have another process's memory: by COW_RANGE, by fork(2), by a copy.
 *
 *   kmodbench ROUNDS MIB...     one line a size: MIB cow_us fork_us copy_us, each the median
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bunshin_kmod.h"

#define PAGE 4096UL
#define MEMORY ((char *)0x200000000000UL)
#define ROUNDS_MAX 100

struct source {
	pid_t pid;
	int pidfd, ready, go;
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void map(size_t bytes)
{
	if (mmap(MEMORY, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MEMORY)
		err(1, "mmap");
	/* Small pages: what a process that has run for a while has. */
	if (madvise(MEMORY, bytes, MADV_NOHUGEPAGE))
		err(1, "madvise");
}

/* Forks on demand, and says how long it took it. */
static void serve(size_t bytes, int go, int ready)
{
	double took = 0;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	map(bytes);
	for (size_t at = 0; at < bytes; at += PAGE)
		*(uint64_t *)(MEMORY + at) = at;
	while (write(ready, &took, sizeof(took)) == sizeof(took) && read(go, &byte, 1) == 1) {
		double began = now_us();
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		took = now_us() - began;
		waitpid(pid, NULL, 0);
	}
	_exit(0);
}

static void start(struct source *s, size_t bytes)
{
	int go[2], ready[2];
	double took;

	if (pipe(go) || pipe(ready))
		err(1, "pipe");
	s->pid = fork();
	if (!s->pid)
		serve(bytes, go[0], ready[1]);
	s->pidfd = syscall(SYS_pidfd_open, s->pid, 0);
	s->go = go[1];
	s->ready = ready[0];
	if (s->pid < 0 || s->pidfd < 0 || read(s->ready, &took, sizeof(took)) != sizeof(took))
		err(1, "source");
}

static double time_fork(const struct source *s)
{
	double took;

	if (write(s->go, "", 1) != 1 || read(s->ready, &took, sizeof(took)) != sizeof(took))
		err(1, "source");
	return took;
}

static double time_cow(const struct source *s, int device, size_t bytes)
{
	struct bunshin_cow_range range = {
		.size = sizeof(range), .pidfd = s->pidfd, .start = (uintptr_t)MEMORY, .length = bytes,
	};
	double began = now_us(), took;

	if (ioctl(device, BUNSHIN_COW_RANGE, &range))
		err(1, "BUNSHIN_COW_RANGE");
	took = now_us() - began;
	munmap(MEMORY, bytes);
	return took;
}

static double time_copy(const struct source *s, size_t bytes)
{
	double began = now_us(), took;

	map(bytes);
	for (size_t at = 0; at < bytes;) {
		struct iovec io = { MEMORY + at, bytes - at };
		ssize_t got = process_vm_readv(s->pid, &io, 1, &io, 1, 0);

		if (got <= 0)
			err(1, "process_vm_readv");
		at += got;
	}
	took = now_us() - began;
	munmap(MEMORY, bytes);
	return took;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int main(int argc, char **argv)
{
	double cow[ROUNDS_MAX], forks[ROUNDS_MAX], copy[ROUNDS_MAX];
	int rounds = argc > 2 ? atoi(argv[1]) : 0, device = open(BUNSHIN_DEVICE, O_RDWR | O_CLOEXEC);

	if (rounds < 1 || rounds > ROUNDS_MAX)
		errx(2, "usage: kmodbench ROUNDS MIB...");
	if (device < 0)
		err(1, BUNSHIN_DEVICE);
	for (int i = 2; i < argc; i++) {
		size_t bytes = strtoul(argv[i], NULL, 10) << 20;
		struct source s;

		start(&s, bytes);
		for (int round = 0; round < rounds; round++) {
			cow[round] = time_cow(&s, device, bytes);
			forks[round] = time_fork(&s);
			copy[round] = time_copy(&s, bytes);
		}
		printf("%s %.0f %.0f %.0f\n", argv[i], median(cow, rounds), median(forks, rounds), median(copy, rounds));
		fflush(stdout);
		kill(s.pid, SIGKILL);
		waitpid(s.pid, NULL, 0);
	}
	return 0;
}
