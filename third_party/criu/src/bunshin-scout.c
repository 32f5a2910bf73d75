// SPDX-License-Identifier: GPL-2.0-only
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-frames.h"
#include "bunshin-pool.h"
#include "bunshin-scout.h"
#include "kerndat.h"
#include "log.h"
#include "pagemap_scan.h"
#include "vma.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define GUARDS_MAX 256
#define PATIENCE_NS 200000000ll

enum { UNSEEN, SAME, CHANGED };

struct sighting {
	pid_t pid;
	_Atomic int mappings, guards; /* UNSEEN; SAME: as learnt, or all guards are here; CHANGED: look for yourself */
	unsigned int n_guards;
	struct bunshin_range at[GUARDS_MAX];
};

static struct sighting *sightings;
static size_t n_sightings;
static int starter = -1;

static void look_for_guards(struct sighting *s)
{
	struct page_region regions[GUARDS_MAX];
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.end = kdat.task_size,
		.vec = (uint64_t)regions,
		.vec_len = GUARDS_MAX,
		.category_mask = PAGE_IS_GUARD,
		.return_mask = PAGE_IS_GUARD,
	};
	int fd = bunshin_open_pagemap(s->pid), i;
	long n = fd < 0 ? -1 : ioctl(fd, PAGEMAP_SCAN, &arg);

	if (fd >= 0)
		close(fd);
	for (i = 0; i < n; i++)
		s->at[i] = (struct bunshin_range){ regions[i].start, regions[i].end };
	s->n_guards = n > 0 ? n : 0;
	s->guards = n >= 0 && n < GUARDS_MAX ? SAME : CHANGED;
}

static void scout(int start, bool (*look)(pid_t pid)) __attribute__((noreturn));
static void scout(int start, bool (*look)(pid_t pid))
{
	char byte;
	size_t i;

	/* The end of the pipe means that the dump is gone. */
	if (read(start, &byte, 1) != 1)
		_exit(0);
	for (i = 0; i < n_sightings; i++) {
		sightings[i].mappings = look(sightings[i].pid) ? SAME : CHANGED;
		if (kdat.has_pagemap_scan_guard_pages)
			look_for_guards(&sightings[i]);
	}
	_exit(0);
}

int bunshin_scout_start(const pid_t *pids, size_t n, bool (*look)(pid_t pid))
{
	int ends[2], status;
	pid_t child;
	size_t i;

	if (!n)
		return 0;
	sightings = mmap(NULL, n * sizeof(*sightings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sightings == MAP_FAILED || pipe2(ends, O_CLOEXEC)) {
		pr_perror("cannot start a scout");
		return -1;
	}
	for (i = 0; i < n; i++)
		sightings[i].pid = pids[i];
	n_sightings = n;
	/* Not a child of the dump, which counts its children's ends. */
	child = fork();
	if (!child) {
		close(ends[1]);
		if (!fork())
			scout(ends[0], look);
		_exit(0);
	}
	close(ends[0]);
	starter = ends[1];
	if (child < 0 || waitpid(child, &status, 0) != child) {
		pr_perror("cannot start a scout");
		return -1;
	}
	return 0;
}

void bunshin_scout_go(void)
{
	if (starter >= 0 && write(starter, "g", 1) == 1)
		return;
	n_sightings = 0;
}

static int wait_for(const _Atomic int *state)
{
	struct timespec nap = { .tv_nsec = 20000 };
	int64_t waited = 0;

	while (*state == UNSEEN && waited < PATIENCE_NS) {
		nanosleep(&nap, NULL);
		waited += nap.tv_nsec;
	}
	return *state;
}

static struct sighting *find(pid_t pid)
{
	size_t i;

	for (i = 0; i < n_sightings; i++)
		if (sightings[i].pid == pid)
			return &sightings[i];
	return NULL;
}

bool bunshin_scout_same(pid_t pid)
{
	struct sighting *s = find(pid);

	return s && wait_for(&s->mappings) == SAME;
}

int bunshin_record_guards(pid_t pid, struct vm_area_list *vmas)
{
	struct sighting *s = find(pid);
	unsigned int i;

	if (!s || wait_for(&s->guards) != SAME)
		return 1;
	for (i = 0; i < s->n_guards; i++) {
		struct vma_area *vma = alloc_vma_area();

		if (!vma)
			return -1;
		vma->e->start = s->at[i].start;
		vma->e->end = s->at[i].end;
		vma->e->status = VMA_AREA_GUARD;
		list_add_tail(&vma->list, &vmas->h);
		vmas->nr++;
	}
	return 0;
}
