// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reading physical frames, and reading them again: a page that the kernel moves while
 * two pagemaps are read could leave its frame to the very page it is compared with.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-copy.h"
#include "bunshin-frames.h"
#include "bunshin-pool.h"
#include "log.h"
#include "mem.h"
#include "page.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

static uint64_t moves_seen;

int bunshin_open_pagemap(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		pr_perror("cannot open %s", path);
	return fd;
}

int bunshin_frame_at(struct bunshin_frames *frames, uint64_t addr, uint64_t limit, uint64_t *ret_entry)
{
	if (addr < frames->start || addr >= frames->end) {
		uint64_t n = (limit - addr) / PAGE_SIZE;
		ssize_t got;

		if (n > BUNSHIN_WINDOW)
			n = BUNSHIN_WINDOW;
		got = pread(frames->fd, frames->entries, n * sizeof(uint64_t), addr / PAGE_SIZE * sizeof(uint64_t));
		if (got < (ssize_t)sizeof(uint64_t)) {
			pr_perror("cannot read a pagemap");
			return -1;
		}
		frames->start = addr;
		frames->end = addr + got / sizeof(uint64_t) * PAGE_SIZE;
	}
	*ret_entry = frames->entries[(addr - frames->start) / PAGE_SIZE];
	return 0;
}

bool bunshin_same_frame(uint64_t a, uint64_t b)
{
	return (a & PME_PRESENT) && (b & PME_PRESENT) && PME_PFRAME(a) && PME_PFRAME(a) == PME_PFRAME(b);
}

/* How often the kernel has put pages into other frames. */
static uint64_t frame_moves(void)
{
	static const char *const names[] = { "pgmigrate_success ", "thp_collapse_alloc ", "pswpin ", "ksm_swpin_copy " };
	FILE *f = fopen("/proc/vmstat", "re");
	uint64_t sum = 0;
	char line[128];
	size_t i;

	while (f && fgets(line, sizeof(line), f))
		for (i = 0; i < sizeof(names) / sizeof(*names); i++)
			if (!strncmp(line, names[i], strlen(names[i])))
				sum += strtoull(line + strlen(names[i]), NULL, 10);
	if (f)
		fclose(f);
	return sum;
}

/* A task's pages: the source's, ours, and the source's once more. */
struct looks {
	struct bunshin_task *task;
	int theirs_fd, ours_fd;
	uint64_t theirs[BUNSHIN_WINDOW], ours[BUNSHIN_WINDOW], again[BUNSHIN_WINDOW];
};

static int read_entries(int fd, uint64_t addr, size_t n, uint64_t *ret_entries)
{
	ssize_t size = n * sizeof(*ret_entries);

	if (pread(fd, ret_entries, size, addr / PAGE_SIZE * sizeof(*ret_entries)) == size)
		return 0;
	pr_perror("cannot read a pagemap");
	return -1;
}

/*
 * A frame that the source's page has before and after it is seen as ours is the frame of both: the source stands still, so
 * that its page would have to leave the frame to ours, ours to leave it again, and the source's to come back, between
 * three reads. However much the kernel moves meanwhile, once is enough.
 */
static int recheck_pages(struct looks *looks, uint64_t at, char *to, size_t n)
{
	size_t i;

	if (read_entries(looks->theirs_fd, at, n, looks->theirs) ||
	    read_entries(looks->ours_fd, (uint64_t)to, n, looks->ours) ||
	    read_entries(looks->theirs_fd, at, n, looks->again))
		return -1;
	for (i = 0; i < n; i++) {
		if (bunshin_same_frame(looks->theirs[i], looks->ours[i]) &&
		    bunshin_same_frame(looks->theirs[i], looks->again[i]))
			continue;
		if (bunshin_copy_add(looks->task->real, at + i * PAGE_SIZE, to + i * PAGE_SIZE, PAGE_SIZE,
				     bunshin_sharing_of(looks->again[i])))
			return -1;
	}
	return 0;
}

static int recheck_seg(struct looks *looks, const struct bunshin_seg *seg)
{
	const struct bunshin_ranges *same = &looks->task->same;
	size_t i = bunshin_ranges_find(same, seg->start);

	for (; i < same->n && same->v[i].start < seg->end; i++) {
		uint64_t at = max_t(uint64_t, same->v[i].start, seg->start);
		uint64_t end = min_t(uint64_t, same->v[i].end, seg->end);

		while (at < end) {
			size_t n = min_t(uint64_t, (end - at) / PAGE_SIZE, BUNSHIN_WINDOW);

			if (recheck_pages(looks, at, seg->addr + (at - seg->start), n))
				return -1;
			at += n * PAGE_SIZE;
		}
	}
	return 0;
}

static int recheck_task(struct bunshin_task *task)
{
	struct looks *looks = xzalloc(sizeof(*looks));
	size_t i;
	int ret = -1;

	if (!looks)
		return -1;
	looks->task = task;
	looks->theirs_fd = bunshin_open_pagemap(task->real);
	looks->ours_fd = bunshin_open_pagemap(getpid());
	if (looks->theirs_fd >= 0 && looks->ours_fd >= 0)
		for (ret = 0, i = 0; i < task->segs.n && !ret; i++)
			ret = recheck_seg(looks, &task->segs.v[i]);
	if (looks->theirs_fd >= 0)
		close(looks->theirs_fd);
	if (looks->ours_fd >= 0)
		close(looks->ours_fd);
	xfree(looks);
	return ret;
}

bool bunshin_recheck_begin(void)
{
	uint64_t seen = moves_seen;

	moves_seen = frame_moves();
	return seen == moves_seen;
}

/* ---- frames seen ahead ---- */

void bunshin_known_free(struct bunshin_known *known)
{
	bunshin_ranges_free(&known->ranges);
	xfree(known->entries);
	*known = (struct bunshin_known){};
}

int bunshin_known_add(struct bunshin_known *known, uint64_t addr, uint64_t entry)
{
	if (known->n == known->room) {
		size_t room = known->room ? 2 * known->room : 1024;
		uint64_t *entries = xrealloc(known->entries, room * sizeof(*entries));

		if (!entries)
			return -1;
		known->entries = entries;
		known->room = room;
	}
	known->entries[known->n++] = entry;
	return bunshin_ranges_add(&known->ranges, addr, addr + PAGE_SIZE);
}

uint64_t bunshin_known_at(struct bunshin_known *known, uint64_t addr)
{
	const struct bunshin_ranges *ranges = &known->ranges;

	for (; known->at < ranges->n && ranges->v[known->at].end <= addr; known->at++)
		known->before += (ranges->v[known->at].end - ranges->v[known->at].start) / PAGE_SIZE;
	if (known->at == ranges->n || ranges->v[known->at].start > addr)
		return 0;
	return known->entries[known->before + (addr - ranges->v[known->at].start) / PAGE_SIZE];
}

int bunshin_fill_recheck(void)
{
	size_t i;

	if (!bunshin_fill_inherited || frame_moves() == moves_seen)
		return 0;
	pr_warn("pages were moved to other frames meanwhile: comparing again\n");
	for (i = 0; i < bunshin_n_tasks; i++)
		if (bunshin_tasks[i].real && recheck_task(&bunshin_tasks[i]))
			return -1;
	return bunshin_copy_wait();
}
