// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where a pool keeps memory. See bunshin-pool.h for the layout.
 *
 * Taking over a frozen source goes in two lists: `segs` as it was, `next` as it
 * becomes. Nothing of the old list is unmapped before bunshin_task_commit(), so
 * a VMA that was split, merged or cut short still finds its pages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bunshin-frames.h"
#include "bunshin-pool.h"
#include "log.h"
#include "page.h"
#include "util.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define GIB (1ull << 30)
#define HUGE (2ull << 20)
/* Arenas lie below where programs and libraries are loaded, and above small fixed addresses. */
#define ARENAS_START (1ull << 40)
#define ARENAS_END (80ull << 40)
#define ARENA_SIZE_MIN (16 * GIB)
/* The beginning of an arena. What finds no room in it lies elsewhere, so a limit costs huge pages and no more. */
#define DENSE_ROOM_MIN (4 * GIB)
#define DENSE_ROOM_MAX (64 * GIB)
/* Room to grow into. A browser's reservations take terabytes, so many processes get by with less. */
#define ARENA_SPARE 2
/* What decides whether two VMAs are of one kind. */
#define FLAGS_KEPT (MAP_GROWSDOWN | MAP_NORESERVE)

struct bunshin_task *bunshin_tasks;
size_t bunshin_n_tasks;

struct bunshin_task *bunshin_task_find(pid_t vpid)
{
	size_t i;

	for (i = 0; i < bunshin_n_tasks; i++)
		if (bunshin_tasks[i].vpid == vpid)
			return &bunshin_tasks[i];
	return NULL;
}

static int range_compare(const void *a, const void *b)
{
	const struct bunshin_range *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* All that a new arena for @task must keep clear of, sorted. */
static int collect_taken(struct bunshin_ranges *taken, const struct bunshin_vma *vmas, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (bunshin_ranges_add(taken, vmas[i].start, vmas[i].end))
			return -1;
	for (i = 0; i < bunshin_n_tasks; i++) {
		struct bunshin_task *t = &bunshin_tasks[i];

		if (t->size && bunshin_ranges_add(taken, (uint64_t)t->base, (uint64_t)t->base + t->size))
			return -1;
	}
	qsort(taken->v, taken->n, sizeof(*taken->v), range_compare);
	return 0;
}

static int find_room(uint64_t size, const struct bunshin_vma *vmas, size_t n, uint64_t *ret_base)
{
	struct bunshin_ranges taken = {};
	uint64_t at = ARENAS_START;
	size_t i;

	if (collect_taken(&taken, vmas, n))
		return -ENOMEM;
	for (i = 0; i < taken.n; i++) {
		if (taken.v[i].end <= at)
			continue;
		if (taken.v[i].start >= at + size)
			break;
		at = round_up(taken.v[i].end, HUGE);
	}
	bunshin_ranges_free(&taken);
	if (at + size > ARENAS_END)
		return -ENOSPC;
	*ret_base = at;
	return 0;
}

static bool arena_in_the_way(const struct bunshin_task *task, const struct bunshin_vma *vmas, size_t n)
{
	uint64_t base = (uint64_t)task->base;
	size_t i;

	for (i = 0; i < n; i++)
		if (vmas[i].start < base + task->size && base < vmas[i].end)
			return true;
	return false;
}

/* Where neighbours are one mapping, and one huge page. NULL: no room. */
static char *dense_place(struct bunshin_task *task, uint64_t len)
{
	char *at = task->base + task->dense;

	if (task->dense + len > task->dense_room)
		return NULL;
	task->dense += len;
	return at;
}

static bool is_dense(const struct bunshin_vma *vma)
{
	return vma->dense && (vma->prot | PROT_WRITE) == (PROT_READ | PROT_WRITE) && !(vma->flags & FLAGS_KEPT);
}

/* A place for @len bytes that will go to @target; huge pages stay whole when moved. */
static char *arena_place(struct bunshin_task *task, uint64_t target, uint64_t len)
{
	uint64_t base = (uint64_t)task->base, at = base + task->used;

	if (len >= HUGE)
		at += (target - at) & (HUGE - 1);
	if (at + len > base + task->size)
		return NULL;
	task->used = at + len - base;
	return (char *)at;
}

static bool same_flags(const struct bunshin_seg *seg, const struct bunshin_vma *vma)
{
	return seg->flags == (vma->flags & FLAGS_KEPT);
}

/* Is all of it in one segment already, where it can stay? */
static bool is_held(const struct bunshin_task *task, const struct bunshin_vma *vma)
{
	size_t i = bunshin_segs_find(&task->segs, vma->start);
	const struct bunshin_seg *seg = &task->segs.v[i];

	return vma->kind == BUNSHIN_WHOLE && i < task->segs.n && seg->start <= vma->start && seg->end >= vma->end &&
	       !seg->moved && same_flags(seg, vma);
}

/*
 * The most that placing @vmas takes. Runs are placed in ascending order, so what is lost to keep huge pages whole is no
 * more than the holes between them.
 */
static uint64_t wanted_bytes(const struct bunshin_task *task, const struct bunshin_vma *vmas, size_t n)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < n; i++)
		if (vmas[i].kind && !is_held(task, &vmas[i]))
			sum += vmas[i].end - vmas[i].start + HUGE;
	return sum;
}

/* The most that placing the task's segments anew takes. */
static uint64_t held_bytes(const struct bunshin_task *task)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < task->segs.n; i++)
		sum += task->segs.v[i].end - task->segs.v[i].start + HUGE;
	return sum;
}

void bunshin_task_drop(struct bunshin_task *task)
{
	if (task->size)
		munmap(task->base, task->size);
	task->size = task->used = task->dense = task->dense_room = 0;
	task->segs.n = task->next.n = 0;
}

static int move_segments(struct bunshin_task *task)
{
	size_t i;

	for (i = 0; i < task->segs.n; i++) {
		struct bunshin_seg *seg = &task->segs.v[i];
		uint64_t len = seg->end - seg->start;
		char *to = arena_place(task, seg->start, len);

		if (!to || mremap(seg->addr, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
			pr_perror("cannot move a segment of task %d", task->vpid);
			return -1;
		}
		seg->addr = to;
	}
	return 0;
}

/* A new, empty arena; what was in the old one moves over. */
static int arena_renew(struct bunshin_task *task, const struct bunshin_vma *vmas, size_t n)
{
	uint64_t need = wanted_bytes(task, vmas, n) + held_bytes(task);
	uint64_t dense_room = min_t(uint64_t, max_t(uint64_t, DENSE_ROOM_MIN, ARENA_SPARE * need), DENSE_ROOM_MAX);
	struct bunshin_task old = *task;
	uint64_t base, size;
	size_t spare;
	int ret = -1;

	for (spare = ARENA_SPARE; spare && ret; spare--) {
		size = round_up(max_t(uint64_t, ARENA_SIZE_MIN, dense_room + spare * need), GIB);
		ret = find_room(size, vmas, n, &base);
	}
	if (ret) {
		pr_err("no room for an arena of %lu GiB\n", (unsigned long)(size / GIB));
		return -1;
	}
	task->base = (char *)base;
	task->size = size;
	task->dense = 0;
	task->dense_room = dense_room;
	task->used = dense_room;
	ret = move_segments(task);
	/* Also what no segment stands for any more. */
	if (old.size)
		munmap(old.base, old.size);
	if (ret)
		bunshin_task_drop(task);
	return ret;
}

struct bunshin_task *bunshin_task_get(pid_t vpid, const struct bunshin_vma *vmas, size_t n)
{
	struct bunshin_task *task = bunshin_task_find(vpid);

	if (!task) {
		struct bunshin_task *all = xrealloc(bunshin_tasks, (bunshin_n_tasks + 1) * sizeof(*all));

		if (!all)
			return NULL;
		bunshin_tasks = all;
		task = &all[bunshin_n_tasks++];
		*task = (struct bunshin_task){ .vpid = vpid, .inherited = true };
	}
	if ((!task->size || arena_in_the_way(task, vmas, n) || task->size - task->used < wanted_bytes(task, vmas, n)) &&
	    arena_renew(task, vmas, n))
		return NULL;
	return task;
}

size_t bunshin_segs_find(const struct bunshin_segs *segs, uint64_t addr)
{
	size_t low = 0, high = segs->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (segs->v[middle].end <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct bunshin_seg *bunshin_segs_append(struct bunshin_segs *segs, const struct bunshin_seg *seg)
{
	if (segs->n == segs->room) {
		size_t room = segs->room ? 2 * segs->room : 64;
		struct bunshin_seg *v = xrealloc(segs->v, room * sizeof(*v));

		if (!v)
			return NULL;
		segs->v = v;
		segs->room = room;
	}
	segs->v[segs->n] = *seg;
	return &segs->v[segs->n++];
}

static struct bunshin_seg *map_new(struct bunshin_task *task, const struct bunshin_vma *vma, uint64_t start,
				   uint64_t end)
{
	struct bunshin_seg seg = {
		.start = start,
		.end = end,
		.prot = vma->prot,
		.flags = vma->flags & FLAGS_KEPT,
		.kind = vma->kind,
		.whole = vma->whole,
		.kept = start,
	};
	char *at = is_dense(vma) ? dense_place(task, end - start) : NULL;

	at = at ?: arena_place(task, start, end - start);

	if (!at) {
		pr_err("the arena of task %d is full\n", task->vpid);
		return NULL;
	}
	seg.addr = mmap(at, end - start, vma->prot | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | seg.flags, -1, 0);
	if (seg.addr != at) {
		pr_perror("cannot map %lu KiB for task %d", (unsigned long)(end - start) >> 10, task->vpid);
		return NULL;
	}
	return bunshin_segs_append(&task->next, &seg);
}

/* Old segments from index @i on that hold @vma from its start, in one piece of our addresses: up to where? */
static uint64_t old_reach(const struct bunshin_task *task, size_t i, const struct bunshin_vma *vma, bool *ret_reprot)
{
	const struct bunshin_segs *segs = &task->segs;
	uint64_t reach = segs->v[i].end;

	*ret_reprot = segs->v[i].prot != vma->prot;
	for (i++; reach < vma->end && i < segs->n; i++) {
		const struct bunshin_seg *seg = &segs->v[i], *before = seg - 1;

		if (seg->start != reach || !same_flags(seg, vma) || seg->addr != before->addr + (before->end - before->start))
			break;
		*ret_reprot |= seg->prot != vma->prot;
		reach = seg->end;
	}
	return reach < vma->end ? reach : vma->end;
}

/* Addresses from @start to @end of the source have left the old list's segments. */
static void forget_moved(struct bunshin_task *task, size_t i, uint64_t start, uint64_t end)
{
	for (; i < task->segs.n && task->segs.v[i].start < end; i++) {
		if (task->segs.v[i].start < start)
			task->segs.v[i].end = start;
		else
			task->segs.v[i].moved = true;
	}
}

/* Takes over [vma->start, reach) of the old list, stretched to all of the VMA. NULL: not possible. */
static struct bunshin_seg *take_over(struct bunshin_task *task, size_t i, const struct bunshin_vma *vma)
{
	struct bunshin_seg *old = &task->segs.v[i];
	struct bunshin_seg seg = *old;
	uint64_t have, want = vma->end - vma->start;
	bool reprot;

	have = old_reach(task, i, vma, &reprot) - vma->start;
	seg.addr += vma->start - old->start;
	seg.start = vma->start;
	seg.end = vma->end;
	seg.prot = vma->prot;
	seg.kind = vma->kind;
	seg.whole = vma->whole;
	seg.kept = vma->start + have;
	if (reprot && mprotect(seg.addr, have, vma->prot | PROT_WRITE))
		return NULL;
	if (have < want) {
		char *to = arena_place(task, vma->start, want);

		if (!to || mremap(seg.addr, have, want, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
			return NULL;
		forget_moved(task, i, vma->start, vma->start + have);
		seg.addr = to;
	}
	return bunshin_segs_append(&task->next, &seg);
}

struct bunshin_seg *bunshin_seg_whole(struct bunshin_task *task, const struct bunshin_vma *vma)
{
	size_t i = bunshin_segs_find(&task->segs, vma->start);
	struct bunshin_seg *seg = NULL;

	if (i < task->segs.n && task->segs.v[i].start <= vma->start && !task->segs.v[i].moved &&
	    same_flags(&task->segs.v[i], vma))
		seg = take_over(task, i, vma);
	return seg ?: map_new(task, vma, vma->start, vma->end);
}

struct bunshin_seg *bunshin_seg_run(struct bunshin_task *task, const struct bunshin_vma *vma, uint64_t start,
				    uint64_t end)
{
	return map_new(task, vma, start, end);
}

struct bunshin_seg *bunshin_seg_keep(struct bunshin_task *task, const struct bunshin_seg *old,
				     const struct bunshin_vma *vma, uint64_t start, uint64_t end)
{
	struct bunshin_seg seg = *old;

	seg.addr += start - old->start;
	seg.start = start;
	seg.end = end;
	seg.kept = end;
	seg.prot = vma->prot;
	seg.kind = vma->kind;
	if (old->prot != vma->prot && mprotect(seg.addr, end - start, vma->prot | PROT_WRITE)) {
		pr_perror("cannot change the protection of a run of task %d", task->vpid);
		return NULL;
	}
	return bunshin_segs_append(&task->next, &seg);
}

/* Unmaps what the old list has and the new one has not. */
static int unmap_rest(struct bunshin_task *task)
{
	struct bunshin_ranges kept = {};
	size_t i, k;
	int ret = -1;

	for (i = 0; i < task->next.n; i++) {
		struct bunshin_seg *seg = &task->next.v[i];

		if (bunshin_ranges_add(&kept, (uint64_t)seg->addr, (uint64_t)seg->addr + (seg->end - seg->start)))
			goto out;
	}
	qsort(kept.v, kept.n, sizeof(*kept.v), range_compare);
	for (i = 0; i < task->segs.n; i++) {
		struct bunshin_seg *seg = &task->segs.v[i];
		uint64_t at = (uint64_t)seg->addr, end = at + (seg->end - seg->start);
		size_t low = 0, high = kept.n;

		if (seg->moved)
			continue;
		while (low < high) {
			k = low + (high - low) / 2;
			if (kept.v[k].end <= at)
				low = k + 1;
			else
				high = k;
		}
		for (k = low; at < end; k++) {
			uint64_t stop = k < kept.n && kept.v[k].start < end ? kept.v[k].start : end;

			if (at < stop && munmap((void *)at, stop - at)) {
				pr_perror("cannot unmap a segment of task %d", task->vpid);
				goto out;
			}
			at = k < kept.n ? max_t(uint64_t, stop, kept.v[k].end) : end;
		}
	}
	ret = 0;
out:
	bunshin_ranges_free(&kept);
	return ret;
}

int bunshin_task_commit(struct bunshin_task *task)
{
	struct bunshin_segs old = task->segs;

	if (unmap_rest(task))
		return -1;
	task->segs = task->next;
	old.n = 0;
	task->next = old;
	return 0;
}

void bunshin_task_forget_ahead(struct bunshin_task *task)
{
	bunshin_ranges_free(&task->sealed);
	bunshin_known_free(&task->known);
}

void bunshin_tasks_sweep(void)
{
	size_t i, kept = 0;

	for (i = 0; i < bunshin_n_tasks; i++) {
		struct bunshin_task *task = &bunshin_tasks[i];

		if (task->real) {
			bunshin_tasks[kept++] = *task;
			continue;
		}
		bunshin_task_drop(task);
		xfree(task->segs.v);
		xfree(task->next.v);
		bunshin_ranges_free(&task->source);
		bunshin_ranges_free(&task->same);
		bunshin_task_forget_ahead(task);
	}
	bunshin_n_tasks = kept;
}

void bunshin_task_advise(const struct bunshin_task *task, int advice)
{
	/* ENOMEM only says that the arena has gaps. */
	if (task->used && madvise(task->base, task->used, advice) && errno != ENOMEM)
		pr_perror("cannot advise %d on the arena of task %d", advice, task->vpid);
}

void bunshin_tasks_advise(int advice)
{
	size_t i;

	for (i = 0; i < bunshin_n_tasks; i++)
		bunshin_task_advise(&bunshin_tasks[i], advice);
	bunshin_shm_advise(advice);
}
