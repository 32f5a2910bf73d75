// SPDX-License-Identifier: GPL-2.0-only
/*
 * Brings the arenas up to what a source has now.
 *
 * A page of the source whose physical frame is the pool's at the same place is
 * the same page, shared copy-on-write since the branch was made: nothing to do. All
 * others are copied. For the first snapshot of a workspace that is every page.
 *
 * Where the kernel module is there, a segment of which much has changed is not copied into but
 * shared anew, as a whole: that costs page table entries, unchanged pages stay the same
 * ones, and a segment remains one mapping, as mremap() wants it.
 *
 * The same walk serves twice: ahead, while the source runs, it only makes room
 * (mappings, first touch of pages); frozen, it copies.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bunshin-copy.h"
#include "bunshin-kmod.h"
#include "bunshin-pool.h"
#include "log.h"
#include "mem.h"
#include "page.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define WINDOW 1024 /* pagemap entries read at once */
/* Copying a page takes as long as sharing about this many; below the second, a call costs more. */
#define SHARE_PER_COPY 16
#define SHARE_MIN (4 * PAGE_SIZE)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct bunshin_fill_stats bunshin_fill_stats;

/* Reads a pagemap entry by entry, many at a time. */
struct frames {
	int fd;
	uint64_t start, end; /* addresses that entries[] covers */
	uint64_t entries[WINDOW];
};

/* One task's walk. */
struct walk {
	struct bunshin_task *task;
	pid_t real;
	bool ahead;
	bool share; /* what is taken waits in @changed for settle() */
	struct frames theirs, ours;
	struct bunshin_ranges source; /* private pages of the source */
	struct bunshin_ranges pool;   /* and of the arena, by arena address */
	struct bunshin_ranges changed;
	uint64_t resident; /* bytes that the source has in the segment */
};

/* What the pool has and the source no longer: dropped once the source runs again. */
static struct bunshin_ranges stale;

static int frame_at(struct frames *frames, uint64_t addr, uint64_t limit, uint64_t *ret_entry)
{
	if (addr < frames->start || addr >= frames->end) {
		uint64_t n = (limit - addr) / PAGE_SIZE;
		ssize_t got;

		if (n > WINDOW)
			n = WINDOW;
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

static bool same_frame(uint64_t a, uint64_t b)
{
	return (a & PME_PRESENT) && (b & PME_PRESENT) && PME_PFRAME(a) && PME_PFRAME(a) == PME_PFRAME(b);
}

static int copy(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
		uint64_t end)
{
	char *to = seg->addr + (start - seg->start);

	bunshin_fill_stats.copied_bytes += end - start;
	/* The dump pokes into code later on. */
	if (vma->kind != BUNSHIN_WHOLE && (vma->prot & PROT_EXEC))
		return bunshin_copy_now(w->real, start, to, end - start);
	return bunshin_copy_add(w->real, start, to, end - start);
}

/* Pages [start, end) of the source differ from the pool's, or are not there yet. */
static int take(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
		uint64_t end)
{
	if (!w->ahead)
		return w->share ? bunshin_ranges_add(&w->changed, start, end) : copy(w, vma, seg, start, end);
	/* Best effort: what cannot be touched now is touched by the copying. */
	if (!bunshin_kmod_ready())
		madvise(seg->addr + (start - seg->start), end - start, MADV_POPULATE_WRITE);
	return 0;
}

static bool worth_sharing(const struct walk *w, uint64_t changed)
{
	return changed >= SHARE_MIN && changed * SHARE_PER_COPY >= w->resident;
}

/* A segment has been walked: what was taken is shared or copied. */
static int settle(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg)
{
	uint64_t changed = 0;
	int ret = 1;
	size_t i;

	for (i = 0; i < w->changed.n; i++)
		changed += w->changed.v[i].end - w->changed.v[i].start;
	if (worth_sharing(w, changed))
		ret = bunshin_kmod_pull(w->real, seg);
	if (!ret)
		bunshin_fill_stats.shared_bytes += changed;
	for (i = 0; ret == 1 && i < w->changed.n; i++)
		if (copy(w, vma, seg, w->changed.v[i].start, w->changed.v[i].end))
			ret = -1;
	w->changed.n = 0;
	w->resident = 0;
	return ret < 0 ? -1 : 0;
}

/* [start, end) is resident on both sides. */
static int take_changed(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
			uint64_t end)
{
	uint64_t shift = (uint64_t)seg->addr - seg->start, first = start, at;

	for (at = start; at < end; at += PAGE_SIZE) {
		uint64_t theirs, ours;

		if (frame_at(&w->theirs, at, vma->end, &theirs) || frame_at(&w->ours, at + shift, seg->end + shift, &ours))
			return -1;
		if (!same_frame(theirs, ours))
			continue;
		if (first < at && take(w, vma, seg, first, at))
			return -1;
		first = at + PAGE_SIZE;
		if (!w->ahead)
			bunshin_fill_stats.shared_bytes += PAGE_SIZE;
	}
	return first < end ? take(w, vma, seg, first, end) : 0;
}

static int give_up(const struct walk *w, const struct bunshin_seg *seg, uint64_t start, uint64_t end)
{
	uint64_t at = (uint64_t)seg->addr + (start - seg->start);

	return w->ahead ? 0 : bunshin_ranges_add(&stale, at, at + (end - start));
}

static size_t range_find(const struct bunshin_ranges *ranges, uint64_t addr)
{
	size_t low = 0, high = ranges->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (ranges->v[middle].end <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* [start, end) of the segment, all of it resident in the source: parts that the pool has and parts that it lacks. */
static int take_range(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
		      uint64_t end)
{
	uint64_t shift = (uint64_t)seg->addr - seg->start;
	size_t i = range_find(&w->pool, start + shift);

	w->resident += end - start;
	while (start < end) {
		uint64_t have = end, stop = end;

		if (i < w->pool.n && w->pool.v[i].start < end + shift) {
			have = w->pool.v[i].start > start + shift ? w->pool.v[i].start - shift : start;
			if (w->pool.v[i].end < end + shift)
				stop = w->pool.v[i].end - shift;
		}
		if (start < have && take(w, vma, seg, start, have))
			return -1;
		if (have < stop && take_changed(w, vma, seg, have, stop))
			return -1;
		start = stop;
		i++;
	}
	return 0;
}

/* What the pool has in [start, end) of the segment and the source has not. */
static int drop_range(struct walk *w, const struct bunshin_seg *seg, uint64_t start, uint64_t end)
{
	uint64_t shift = (uint64_t)seg->addr - seg->start;
	size_t i;

	if (start == end)
		return 0;
	for (i = range_find(&w->pool, start + shift); i < w->pool.n && w->pool.v[i].start < end + shift; i++) {
		uint64_t a = w->pool.v[i].start - shift, b = w->pool.v[i].end - shift;

		if (give_up(w, seg, a < start ? start : a, b > end ? end : b))
			return -1;
	}
	return 0;
}

/* @i: the first range of the source in the VMA. */
static int walk_seg(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, size_t i)
{
	uint64_t at = vma->start;

	for (; i < w->source.n && w->source.v[i].start < vma->end; i++) {
		uint64_t start = w->source.v[i].start, end = w->source.v[i].end;

		start = start < vma->start ? vma->start : start;
		end = end > vma->end ? vma->end : end;
		if (drop_range(w, seg, at, start) || take_range(w, vma, seg, start, end))
			return -1;
		at = end;
	}
	return drop_range(w, seg, at, vma->end);
}

/* One segment for all of the VMA. */
static int walk_whole(struct walk *w, const struct bunshin_vma *vma, size_t i)
{
	struct bunshin_ranges pool = w->pool;
	enum bunshin_origin origin;
	struct bunshin_seg *seg;
	int ret;

	seg = bunshin_seg_whole(w->task, vma, &origin);
	if (!seg)
		return -1;
	if (vma->whole)
		return take(w, vma, seg, vma->start, vma->end) || settle(w, vma, seg) ? -1 : 0;
	if (origin == BUNSHIN_KEPT)
		return walk_seg(w, vma, seg, i) || settle(w, vma, seg) ? -1 : 0;
	/* It lies where the scan has not seen it. */
	w->pool = (struct bunshin_ranges){};
	ret = origin == BUNSHIN_FRESH ? 0 :
					bunshin_scan(w->ours.fd, (uint64_t)seg->addr,
						     (uint64_t)seg->addr + (seg->end - seg->start), &w->pool);
	if (!ret)
		ret = walk_seg(w, vma, seg, i) || settle(w, vma, seg) ? -1 : 0;
	bunshin_ranges_free(&w->pool);
	w->pool = pool;
	return ret;
}

/* One segment for each run of pages; parts of old ones where there are any. */
static int walk_runs_in(struct walk *w, const struct bunshin_vma *vma, uint64_t start, uint64_t end)
{
	const struct bunshin_segs *old = &w->task->segs;
	size_t i = bunshin_segs_find(old, start);

	while (start < end) {
		struct bunshin_seg *seg;
		uint64_t stop = end;

		if (i < old->n && old->v[i].start <= start && old->v[i].kind != BUNSHIN_WHOLE) {
			if (old->v[i].end < stop)
				stop = old->v[i].end;
			seg = bunshin_seg_keep(w->task, &old->v[i], vma, start, stop);
			if (!seg || take_range(w, vma, seg, start, stop) || settle(w, vma, seg))
				return -1;
			i++;
		} else {
			if (i < old->n && old->v[i].start <= start)
				i++;
			if (i < old->n && old->v[i].start < stop)
				stop = old->v[i].start;
			seg = bunshin_seg_run(w->task, vma, start, stop);
			if (!seg || take(w, vma, seg, start, stop) || settle(w, vma, seg))
				return -1;
		}
		start = stop;
	}
	return 0;
}

static int walk_runs(struct walk *w, const struct bunshin_vma *vma, size_t i)
{
	for (; i < w->source.n && w->source.v[i].start < vma->end; i++) {
		uint64_t start = w->source.v[i].start, end = w->source.v[i].end;

		if (walk_runs_in(w, vma, start < vma->start ? vma->start : start, end > vma->end ? vma->end : end))
			return -1;
	}
	return 0;
}

static int open_pagemap(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		pr_perror("cannot open %s", path);
	return fd;
}

/* VMAs without private pages count no further than that the arena keeps clear of them. */
static void mark_empty(struct walk *w, struct bunshin_vma *vmas, size_t n)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++) {
		while (k < w->source.n && w->source.v[k].end <= vmas[i].start)
			k++;
		if (!vmas[i].whole && (k == w->source.n || w->source.v[k].start >= vmas[i].end))
			vmas[i].kind = 0;
	}
}

static int walk_vmas(struct walk *w, const struct bunshin_vma *vmas, size_t n)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++) {
		if (!vmas[i].kind)
			continue;
		while (k < w->source.n && w->source.v[k].end <= vmas[i].start)
			k++;
		/* The dump pokes into code later on, and special mappings are none to share. */
		w->share = bunshin_kmod_ready() && !vmas[i].whole &&
			   (vmas[i].kind == BUNSHIN_WHOLE || !(vmas[i].prot & PROT_EXEC));
		if (vmas[i].kind == BUNSHIN_WHOLE ? walk_whole(w, &vmas[i], k) : walk_runs(w, &vmas[i], k))
			return -1;
	}
	return 0;
}

static int walk_task(struct walk *w, pid_t vpid, struct bunshin_vma *vmas, size_t n)
{
	uint64_t limit = n ? vmas[n - 1].end : 0;

	if (bunshin_scan(w->theirs.fd, 0, limit, &w->source))
		return -1;
	mark_empty(w, vmas, n);
	w->task = bunshin_task_get(vpid, vmas, n);
	if (!w->task)
		return -1;
	if (!w->ahead)
		w->task->real = w->real;
	if (bunshin_scan(w->ours.fd, (uint64_t)w->task->base, (uint64_t)w->task->base + w->task->used, &w->pool) ||
	    walk_vmas(w, vmas, n) || bunshin_task_commit(w->task))
		return -1;
	bunshin_copy_flush();
	return 0;
}

int bunshin_fill_task(pid_t vpid, pid_t real, bool ahead, struct bunshin_vma *vmas, size_t n)
{
	struct walk *w = xzalloc(sizeof(*w));
	int ret = -1;

	if (!w)
		return -1;
	w->real = real;
	w->ahead = ahead;
	w->theirs.fd = open_pagemap(real);
	w->ours.fd = open_pagemap(getpid());
	if (w->theirs.fd >= 0 && w->ours.fd >= 0)
		ret = walk_task(w, vpid, vmas, n);
	if (w->theirs.fd >= 0)
		close(w->theirs.fd);
	if (w->ours.fd >= 0)
		close(w->ours.fd);
	bunshin_ranges_free(&w->source);
	bunshin_ranges_free(&w->pool);
	bunshin_ranges_free(&w->changed);
	xfree(w);
	return ret;
}

int bunshin_fill_ahead(pid_t root)
{
	struct bunshin_pid *pids;
	size_t n_pids, i, n;
	int ret = 0;

	if (bunshin_read_tree(root, &pids, &n_pids))
		return -1;
	for (i = 0; i < n_pids && !ret; i++) {
		struct bunshin_vma *vmas;

		/* It may end while we look; the frozen walk is what counts. */
		if (bunshin_read_vmas(pids[i].real, &vmas, &n))
			continue;
		if (n)
			ret = bunshin_fill_task(pids[i].vpid, pids[i].real, true, vmas, n);
		xfree(vmas);
	}
	xfree(pids);
	return ret;
}

void bunshin_fill_begin(void)
{
	size_t i;

	bunshin_fill_stats = (struct bunshin_fill_stats){};
	stale.n = 0;
	for (i = 0; i < bunshin_n_tasks; i++)
		bunshin_tasks[i].real = 0;
}

void bunshin_fill_sweep(void)
{
	size_t i;

	for (i = 0; i < stale.n; i++)
		if (madvise((void *)stale.v[i].start, stale.v[i].end - stale.v[i].start, MADV_DONTNEED))
			pr_perror("cannot drop pages at %#" PRIx64, stale.v[i].start);
	bunshin_ranges_free(&stale);
	bunshin_tasks_sweep();
}
