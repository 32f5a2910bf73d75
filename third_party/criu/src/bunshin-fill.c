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
 * The same walk serves twice: ahead, while the source runs, it makes room (mappings, first touch of pages), and
 * copies what can be watched; frozen, it copies the rest, and what has been written to since.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bunshin-copy.h"
#include "bunshin-frames.h"
#include "bunshin-kmod.h"
#include "bunshin-pool.h"
#include "bunshin-smaps.h"
#include "bunshin-watch.h"
#include "log.h"
#include "mem.h"
#include "page.h"
#include "util.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

/* Copying a page takes as long as sharing about this many; below the second, a call costs more. */
#define SHARE_PER_COPY 16
#define SHARE_MIN (4 * PAGE_SIZE)
/* Of a new pool: smaller holes between a source's pages are left as they are, zero. */
#define HOLE_MIN (1ull << 20)
/* Larger ones have huge pages of their own. */
#define DENSE_MAX (8ull << 20)

struct bunshin_fill_stats bunshin_fill_stats;
bool bunshin_fill_inherited;

/* One task's walk. */
struct walk {
	struct bunshin_task *task;
	pid_t real;
	const struct bunshin_frozen *frozen;
	bool ahead; /* it is not */
	bool watched; /* ahead */
	bool share; /* what is taken waits in @changed for settle() */
	struct bunshin_frames theirs, ours;
	struct bunshin_ranges source; /* private pages of the source */
	struct bunshin_ranges noted;  /* those whose writes are noted still */
	struct bunshin_ranges changed;
	uint64_t resident; /* bytes that the source has in the segment */
};

static int copy(struct walk *w, const struct bunshin_seg *seg, uint64_t start, uint64_t end, enum bunshin_sharing how)
{
	bunshin_fill_stats.copied_bytes += end - start;
	return bunshin_copy_add(w->real, start, seg->addr + (start - seg->start), end - start, how);
}

/* Pages [start, end) of the source differ from the pool's, or are not there yet. */
static int take(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
		uint64_t end, enum bunshin_sharing how)
{
	char *to = seg->addr + (start - seg->start);

	if (!w->ahead)
		return w->share ? bunshin_ranges_add(&w->changed, start, end) : copy(w, seg, start, end, how);
	if (bunshin_kmod_ready())
		return 0;
	if (w->watched && bunshin_may_watch(vma) && bunshin_copy_add(w->real, start, to, end - start, how))
		return -1;
	return bunshin_populate_add(to, end - start);
}

static bool worth_sharing(const struct walk *w, uint64_t changed)
{
	return changed >= SHARE_MIN && changed * SHARE_PER_COPY >= w->resident;
}

/* A segment has been walked: what was taken is shared or copied. */
static int settle(struct walk *w, const struct bunshin_seg *seg)
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
		if (copy(w, seg, w->changed.v[i].start, w->changed.v[i].end, BUNSHIN_PAGES_MIXED))
			ret = -1;
	w->changed.n = 0;
	w->resident = 0;
	return ret < 0 ? -1 : 0;
}

enum verdict { DIFFERS, SAME_FRAME, SAME_CONTENT };

/*
 * A page that was copied from that frame has not been written since. A mapping that the process has moved to or beside
 * is not watched any more, and its pages keep their bits.
 */
static bool is_unwritten(const struct walk *w, const struct bunshin_vma *vma, uint64_t at, uint64_t theirs, uint64_t known)
{
	size_t i;

	if (!(theirs & BUNSHIN_UNWRITTEN) || !bunshin_same_frame(theirs, known) || !bunshin_may_watch(vma))
		return false;
	i = bunshin_ranges_find(&w->noted, at);
	return i < w->noted.n && w->noted.v[i].start <= at;
}

/* Whether the pool's page for the source's at @at is the same as that, or as good as. */
static int compare_page(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t at,
			uint64_t theirs, enum verdict *ret)
{
	uint64_t shift = (uint64_t)seg->addr - seg->start, ours = 0, known = 0;

	*ret = DIFFERS;
	if (at >= seg->kept)
		return 0;
	if (!w->ahead)
		known = bunshin_known_at(&w->task->known, at);
	if (known & BUNSHIN_COPIED) {
		if (is_unwritten(w, vma, at, theirs, known))
			*ret = SAME_CONTENT;
		return 0;
	}
	if (!bunshin_fill_inherited)
		return 0;
	if (!w->ahead && w->task->known.n && !w->task->known.moved)
		ours = known;
	else if (bunshin_frame_at(&w->ours, at + shift, seg->end + shift, &ours))
		return -1;
	if (bunshin_same_frame(theirs, ours))
		*ret = SAME_FRAME;
	return 0;
}

/* Ahead: what there is to know of a page later. */
static int keep_known(struct walk *w, const struct bunshin_vma *vma, uint64_t at, uint64_t theirs, enum verdict verdict)
{
	uint64_t entry = 0;

	if (verdict == SAME_FRAME)
		entry = theirs;
	else if (w->watched && bunshin_may_watch(vma) && theirs & BUNSHIN_UNWRITTEN && theirs & PME_PRESENT)
		entry = theirs | BUNSHIN_COPIED;
	return bunshin_known_add(&w->task->known, at, entry);
}

/* Frozen: the pool has it already. */
static int count_same(struct walk *w, uint64_t at, enum verdict verdict)
{
	if (verdict == SAME_CONTENT) {
		bunshin_fill_stats.copied_bytes += PAGE_SIZE;
		return 0;
	}
	bunshin_fill_stats.shared_bytes += PAGE_SIZE;
	return bunshin_ranges_add(&w->task->same, at, at + PAGE_SIZE);
}

/* [start, end) of the segment is resident in the source, and the pool may have the same pages. */
static int compare_range(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
			 uint64_t end)
{
	enum bunshin_sharing how = BUNSHIN_PAGES_OWN;
	uint64_t first = start, at;

	for (at = start; at < end; at += PAGE_SIZE) {
		enum verdict verdict;
		uint64_t theirs;

		if (bunshin_frame_at(&w->theirs, at, vma->end, &theirs) || compare_page(w, vma, seg, at, theirs, &verdict) ||
		    (w->ahead && keep_known(w, vma, at, theirs, verdict)))
			return -1;
		if (!verdict && bunshin_sharing_of(theirs) == how)
			continue;
		if (first < at && take(w, vma, seg, first, at, how))
			return -1;
		how = bunshin_sharing_of(theirs);
		first = at + (verdict ? PAGE_SIZE : 0);
		if (verdict && !w->ahead && count_same(w, at, verdict))
			return -1;
	}
	return first < end ? take(w, vma, seg, first, end, how) : 0;
}

static bool may_be_same(const struct walk *w)
{
	return bunshin_fill_inherited || w->watched || w->task->known.n;
}

static int take_range(struct walk *w, const struct bunshin_vma *vma, const struct bunshin_seg *seg, uint64_t start,
		      uint64_t end)
{
	w->resident += end - start;
	return may_be_same(w) ? compare_range(w, vma, seg, start, end)
			      : take(w, vma, seg, start, end, BUNSHIN_PAGES_MIXED);
}

/* @i: the first range of the source in the VMA. */
static bool has_few_holes(const struct walk *w, const struct bunshin_vma *vma, size_t i)
{
	uint64_t size = vma->end - vma->start, bytes = 0;

	if (size > DENSE_MAX)
		return false;
	for (; i < w->source.n && w->source.v[i].start < vma->end; i++)
		bytes += min_t(uint64_t, w->source.v[i].end, vma->end) - max_t(uint64_t, w->source.v[i].start, vma->start);
	return bytes >= size - size / 8;
}

/* One segment for all of the VMA; @i: the first range of the source in it. */
static int walk_whole(struct walk *w, const struct bunshin_vma *vma, size_t i)
{
	struct bunshin_seg *seg = bunshin_seg_whole(w->task, vma);

	if (!seg)
		return -1;
	if (vma->whole)
		return take(w, vma, seg, vma->start, vma->end, BUNSHIN_PAGES_MIXED) || settle(w, seg) ? -1 : 0;
	for (; i < w->source.n && w->source.v[i].start < vma->end; i++) {
		uint64_t start = w->source.v[i].start, end = w->source.v[i].end;

		if (take_range(w, vma, seg, start < vma->start ? vma->start : start, end > vma->end ? vma->end : end))
			return -1;
	}
	return settle(w, seg);
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
			if (!seg || take_range(w, vma, seg, start, stop) || settle(w, seg))
				return -1;
			i++;
		} else {
			if (i < old->n && old->v[i].start <= start)
				i++;
			if (i < old->n && old->v[i].start < stop)
				stop = old->v[i].start;
			seg = bunshin_seg_run(w->task, vma, start, stop);
			if (!seg || take_range(w, vma, seg, start, stop) || settle(w, seg))
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

static int walk_vmas(struct walk *w, struct bunshin_vma *vmas, size_t n)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++) {
		if (!vmas[i].kind)
			continue;
		while (k < w->source.n && w->source.v[k].end <= vmas[i].start)
			k++;
		vmas[i].dense = vmas[i].kind != BUNSHIN_WHOLE || has_few_holes(w, &vmas[i], k);
		w->share = bunshin_kmod_ready() && !vmas[i].whole;
		if (vmas[i].kind == BUNSHIN_WHOLE ? walk_whole(w, &vmas[i], k) : walk_runs(w, &vmas[i], k))
			return -1;
	}
	return 0;
}

static int walk_task(struct walk *w, pid_t vpid, struct bunshin_vma *vmas, size_t n)
{
	uint64_t faults;

	w->watched = w->ahead && !bunshin_kmod_ready() && bunshin_watch(w->real, w->theirs.fd, vmas, n);
	faults = w->ahead ? bunshin_faults_of(w->real) : 0;
	if (!w->ahead)
		bunshin_sealed_mark(bunshin_task_find(vpid), w->frozen->faults, vmas, n);
	if (bunshin_scan_vmas(w->theirs.fd, vmas, n, w->ahead, &w->source, &w->noted))
		return -1;
	/* First, since a browser reserves terabytes that it never touches: no room is needed for those. */
	mark_empty(w, vmas, n);
	w->task = bunshin_task_get(vpid, vmas, n);
	if (!w->task)
		return -1;
	if (w->ahead) {
		bunshin_task_forget_ahead(w->task);
		w->task->faults = faults;
		if (bunshin_sealed_keep(w->task, vmas, n, &w->source))
			return -1;
	} else {
		w->task->real = w->real;
		w->task->poked = w->frozen->poked;
		w->task->same.n = 0;
	}
	if (walk_vmas(w, vmas, n) || bunshin_task_commit(w->task))
		return -1;
	/*
	 * Not huge ones in a forked pool: there pages are its parent's as well, but for a few. And one that is the source's
	 * as well must stay it: let go, the source would write to it where it is, and it would still look the same.
	 */
	bunshin_populate(!bunshin_fill_inherited);
	if (w->ahead)
		return bunshin_copy_ahead();
	bunshin_copy_flush();
	bunshin_ranges_free(&w->task->source);
	w->task->source = w->source;
	w->source = (struct bunshin_ranges){};
	return 0;
}

/* Of the process whose pagemap was opened: it has ended, or runs another program. */
static bool is_gone(int pagemap_fd)
{
	uint64_t entry;

	return pread(pagemap_fd, &entry, sizeof(entry), 0) <= 0;
}

/* Ahead: the frozen walk is what counts, and the sweep forgets what has ended. */
static void pass_over(pid_t vpid)
{
	struct bunshin_task *task = bunshin_task_find(vpid);

	bunshin_copy_drop();
	if (!task)
		return;
	bunshin_task_drop(task);
	bunshin_task_forget_ahead(task);
}

int bunshin_fill_task(pid_t vpid, pid_t real, const struct bunshin_frozen *frozen, struct bunshin_vma *vmas, size_t n)
{
	struct walk *w = xzalloc(sizeof(*w));
	int ret = -1;

	if (!w)
		return -1;
	w->real = real;
	w->frozen = frozen;
	w->ahead = !frozen;
	w->theirs.fd = bunshin_open_pagemap(real);
	w->ours.fd = bunshin_open_pagemap(getpid());
	if (w->theirs.fd >= 0 && w->ours.fd >= 0)
		ret = walk_task(w, vpid, vmas, n);
	if (ret && w->ahead && is_gone(w->theirs.fd)) {
		pass_over(vpid);
		ret = 0;
	}
	if (w->theirs.fd >= 0)
		close(w->theirs.fd);
	if (w->ours.fd >= 0)
		close(w->ours.fd);
	bunshin_ranges_free(&w->source);
	bunshin_ranges_free(&w->noted);
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
	bunshin_watch_join();
	bunshin_recheck_begin();
	for (i = 0; i < n_pids && !ret; i++) {
		struct bunshin_vma *vmas;
		const char *text;

		/* One that is new, and what changes while we look: the frozen walk is what counts. */
		if (!bunshin_smaps_known(pids[i].real, &text, &n))
			continue;
		ret = bunshin_parse_vmas(text, n, &vmas, &n);
		if (ret)
			break;
		if (n)
			ret = bunshin_fill_task(pids[i].vpid, pids[i].real, NULL, vmas, n);
		xfree(vmas);
	}
	xfree(pids);
	return ret;
}

void bunshin_fill_begin(void)
{
	bool stayed = bunshin_recheck_begin();
	size_t i;

	bunshin_fill_stats = (struct bunshin_fill_stats){};
	for (i = 0; i < bunshin_n_tasks; i++) {
		bunshin_tasks[i].real = 0;
		bunshin_tasks[i].known.moved = !stayed;
	}
}

static int copy_poked(const struct bunshin_task *task)
{
	size_t page = bunshin_ranges_find(&task->source, task->poked), seg = bunshin_segs_find(&task->segs, task->poked);

	/* A sealed mapping is not looked through: its page is the file's again, and the pool has none. */
	if (page == task->source.n || task->source.v[page].start > task->poked || seg == task->segs.n ||
	    task->segs.v[seg].start > task->poked)
		return 0;
	return bunshin_copy_add(task->real, task->poked,
				task->segs.v[seg].addr + (task->poked - task->segs.v[seg].start), PAGE_SIZE,
				BUNSHIN_PAGES_MIXED);
}

int bunshin_fill_poked(void)
{
	size_t i;

	for (i = 0; i < bunshin_n_tasks; i++)
		if (bunshin_tasks[i].real && copy_poked(&bunshin_tasks[i]))
			return -1;
	return bunshin_copy_wait();
}

/* The source has no pages in [start, end) of the segment, so they read as zero. In a new pool most of them do already. */
static void clear_hole(const struct bunshin_task *task, const struct bunshin_seg *seg, uint64_t start, uint64_t end)
{
	const struct bunshin_ranges *copied = &task->known.ranges;
	char *at = seg->addr + (start - seg->start);
	size_t i;

	if (bunshin_fill_inherited || end - start >= HOLE_MIN) {
		if (madvise(at, end - start, MADV_DONTNEED))
			pr_perror("cannot drop pages at %p", at);
		return;
	}
	for (i = bunshin_ranges_find(copied, start); i < copied->n && copied->v[i].start < end; i++) {
		uint64_t from = max_t(uint64_t, start, copied->v[i].start), to = min_t(uint64_t, end, copied->v[i].end);

		memset(seg->addr + (from - seg->start), 0, to - from);
	}
}

static void drop_stale(const struct bunshin_task *task, const struct bunshin_seg *seg, const struct bunshin_ranges *ours)
{
	const struct bunshin_ranges *source = &task->source;
	uint64_t shift = (uint64_t)seg->addr - seg->start, end = seg->end;
	size_t i = bunshin_ranges_find(ours, seg->start + shift), k = bunshin_ranges_find(source, seg->start);

	for (; i < ours->n && ours->v[i].start < end + shift; i++) {
		uint64_t at = ours->v[i].start - shift, stop = ours->v[i].end - shift;

		at = at < seg->start ? seg->start : at;
		stop = stop > end ? end : stop;
		while (at < stop) {
			uint64_t next;

			while (k < source->n && source->v[k].end <= at)
				k++;
			if (k < source->n && source->v[k].start <= at) {
				at = source->v[k].end;
				continue;
			}
			next = k < source->n && source->v[k].start < stop ? source->v[k].start : stop;
			clear_hole(task, seg, at, next);
			at = next;
		}
	}
}

static int sweep_task(struct bunshin_task *task, int pagemap)
{
	struct bunshin_ranges ours = {};
	size_t i;
	int ret = bunshin_scan(pagemap, (uint64_t)task->base, (uint64_t)task->base + task->used, &ours);

	for (i = 0; i < task->segs.n && !ret; i++)
		if (task->segs.v[i].kind == BUNSHIN_WHOLE && !task->segs.v[i].whole)
			drop_stale(task, &task->segs.v[i], &ours);
	bunshin_ranges_free(&ours);
	bunshin_ranges_free(&task->source);
	bunshin_ranges_free(&task->same);
	bunshin_task_forget_ahead(task);
	return ret;
}

int bunshin_fill_sweep(void)
{
	int pagemap = bunshin_open_pagemap(getpid()), ret = pagemap < 0 ? -1 : 0;
	size_t i;

	for (i = 0; i < bunshin_n_tasks && !ret; i++)
		if (bunshin_tasks[i].real)
			ret = sweep_task(&bunshin_tasks[i], pagemap);
	if (pagemap >= 0)
		close(pagemap);
	bunshin_tasks_sweep();
	return ret;
}
