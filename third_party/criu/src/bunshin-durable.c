// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool as a directory of CRIU images, and back. What is written is complete: the
 * metadata as it was recorded, and the pool's memory as pagemap and page images, so that a
 * plain restore can read it as well.
 *
 *   pagemap-PID.img        pages-N.img    a task's private memory
 *   pagemap-shmem-ID.img   pages-N.img    shared memory; addresses are offsets
 *
 * Reading makes a pool that is as if it had recorded.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-pool.h"
#include "image.h"
#include "images/mm.pb-c.h"
#include "images/pagemap.pb-c.h"
#include "images/vma.pb-c.h"
#include "log.h"
#include "page.h"
#include "pagemap.h"
#include "protobuf.h"
#include "util.h"
#include "vma.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

/* A pagemap image and its pages. */
struct bunshin_pages {
	struct cr_img *map, *pages;
};

static void pages_close(struct bunshin_pages *p)
{
	if (p->map)
		close_image(p->map);
	if (p->pages)
		close_image(p->pages);
}

static int pages_open(int dir, int type, uint64_t id, unsigned long flags, struct bunshin_pages *p)
{
	uint32_t pages_id;

	p->pages = NULL;
	p->map = open_image_at(dir, type, flags, (unsigned long)id);
	if (p->map)
		p->pages = open_pages_image_at(dir, flags, p->map, &pages_id);
	if (p->pages)
		return 0;
	pr_err("cannot open the images of %#lx's pages\n", (unsigned long)id);
	pages_close(p);
	return -1;
}

/* ---- writing ---------------------------------------------------------------- */

int bunshin_pages_put(struct bunshin_pages *p, uint64_t to, const char *from, uint64_t len)
{
	PagemapEntry entry = PAGEMAP_ENTRY__INIT;

	entry.vaddr = to;
	entry.nr_pages = len / PAGE_SIZE;
	entry.has_nr_pages = true;
	entry.flags = PE_PRESENT;
	entry.has_flags = true;
	if (pb_write_one(p->map, &entry, PB_PAGEMAP))
		return -1;
	while (len) {
		ssize_t put = write(img_raw_fd(p->pages), from, min_t(uint64_t, len, 1u << 30));

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			pr_perror("cannot write pages");
			return -1;
		}
		from += put;
		len -= put;
	}
	return 0;
}

/* Anonymous memory: a page that the pool has not is zero. Of files and the vDSO every page counts. */
static int put_seg(struct bunshin_pages *p, const struct bunshin_seg *seg, int pagemap)
{
	uint64_t base = (uint64_t)seg->addr, len = seg->end - seg->start;
	struct bunshin_ranges ranges = {};
	int ret = 0;
	size_t i;

	if (seg->kind != BUNSHIN_WHOLE || seg->whole)
		return bunshin_pages_put(p, seg->start, seg->addr, len);
	if (bunshin_scan(pagemap, base, base + len, &ranges))
		return -1;
	for (i = 0; i < ranges.n && !ret; i++)
		ret = bunshin_pages_put(p, seg->start + (ranges.v[i].start - base), (char *)ranges.v[i].start,
					ranges.v[i].end - ranges.v[i].start);
	bunshin_ranges_free(&ranges);
	return ret;
}

static int save_task(const struct bunshin_task *task, int dir, int pagemap)
{
	struct bunshin_pages p;
	int ret = 0;
	size_t i;

	if (pages_open(dir, CR_FD_PAGEMAP, task->vpid, O_DUMP, &p))
		return -1;
	for (i = 0; i < task->segs.n && !ret; i++)
		ret = put_seg(&p, &task->segs.v[i], pagemap);
	pages_close(&p);
	return ret;
}

static int save_shm(int dir)
{
	struct bunshin_pages p;
	uint64_t id;
	int ret = 0;
	size_t i;

	for (i = 0; !ret && bunshin_shm_id(i, &id); i++) {
		if (pages_open(dir, CR_FD_SHMEM_PAGEMAP, id, O_DUMP, &p))
			return -1;
		ret = bunshin_shm_put(i, &p);
		pages_close(&p);
	}
	return ret;
}

static bool holds_memory(const char *name)
{
	return !strncmp(name, "pagemap-", 8) || !strncmp(name, "pages-", 6);
}

static int copy_image(int from_dir, int to_dir, const char *name)
{
	int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int to = from < 0 ? -1 : openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ssize_t got = to < 0 ? -1 : 1;

	while (got > 0)
		got = sendfile(to, from, NULL, 1 << 30);
	if (got < 0)
		pr_perror("cannot copy the image %s", name);
	if (from >= 0)
		close(from);
	if (to >= 0 && close(to) && !got) {
		pr_perror("cannot copy the image %s", name);
		got = -1;
	}
	return got;
}

/* All that is no memory. */
static int copy_images(int from_dir, int to_dir)
{
	int fd = openat(from_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *item;

	if (!list) {
		pr_perror("cannot list the images");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	while (!ret && (item = readdir(list)))
		if (item->d_name[0] != '.' && !holds_memory(item->d_name))
			ret = copy_image(from_dir, to_dir, item->d_name);
	closedir(list);
	return ret;
}

int bunshin_save(int images, int dir)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int ret = copy_images(images, dir);
	size_t i;

	if (pagemap < 0) {
		pr_perror("cannot open our pagemap");
		return -1;
	}
	for (i = 0; i < bunshin_n_tasks && !ret; i++)
		ret = save_task(&bunshin_tasks[i], dir, pagemap);
	if (!ret)
		ret = save_shm(dir);
	close(pagemap);
	return ret;
}

/* ---- reading ------------------------------------------------------------------- */

struct entry {
	uint64_t start, end;
	off_t at; /* in the page image */
};

struct entries {
	struct entry *v;
	size_t n, room;
};

static int entries_add(struct entries *entries, const PagemapEntry *from)
{
	uint64_t pages = from->has_nr_pages ? from->nr_pages : from->compat_nr_pages;
	struct entry *last = entries->n ? &entries->v[entries->n - 1] : NULL;
	off_t at = last ? last->at + (off_t)(last->end - last->start) : 0;

	if (from->has_flags ? !(from->flags & PE_PRESENT) : from->in_parent) {
		pr_err("the pages at %#lx are not in the images\n", (unsigned long)from->vaddr);
		return -1;
	}
	if (last && from->vaddr < last->end) {
		pr_err("the pages at %#lx are out of order\n", (unsigned long)from->vaddr);
		return -1;
	}
	if (entries->n == entries->room) {
		size_t room = entries->room ? 2 * entries->room : 256;
		struct entry *v = xrealloc(entries->v, room * sizeof(*v));

		if (!v)
			return -1;
		entries->v = v;
		entries->room = room;
	}
	entries->v[entries->n++] = (struct entry){ from->vaddr, from->vaddr + pages * PAGE_SIZE, at };
	return 0;
}

static int read_entries(struct cr_img *map, struct entries *ret_entries)
{
	PagemapEntry *entry;
	int ret;

	while ((ret = pb_read_one_eof(map, &entry, PB_PAGEMAP)) > 0) {
		ret = entries_add(ret_entries, entry);
		pagemap_entry__free_unpacked(entry, NULL);
		if (ret)
			return -1;
	}
	return ret;
}

static int read_pages(const struct bunshin_pages *p, off_t at, char *to, uint64_t len)
{
	while (len) {
		ssize_t got = pread(img_raw_fd(p->pages), to, min_t(uint64_t, len, 1u << 30), at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			pr_perror("cannot read pages");
			return -1;
		}
		to += got;
		at += got;
		len -= got;
	}
	return 0;
}

static int read_vmas(int dir, pid_t vpid, struct bunshin_vma **ret_vmas, size_t *ret_n)
{
	struct cr_img *img = open_image_at(dir, CR_FD_MM, O_RSTR, vpid);
	struct bunshin_vma *vmas;
	size_t i, n = 0;
	MmEntry *mm;

	if (!img || empty_image(img) || pb_read_one(img, &mm, PB_MM) < 0) {
		pr_err("task %d has pages and no mappings\n", vpid);
		if (img)
			close_image(img);
		return -1;
	}
	close_image(img);
	vmas = xzalloc((mm->n_vmas + 1) * sizeof(*vmas));
	for (i = 0; vmas && i < mm->n_vmas; i++) {
		struct vma_area vma = { .e = mm->vmas[i] };

		if (!vma_area_is(&vma, VMA_AREA_GUARD))
			bunshin_vma_fill(&vmas[n++], &vma);
	}
	mm_entry__free_unpacked(mm, NULL);
	if (!vmas)
		return -1;
	bunshin_mark_copies(vmas, n);
	*ret_vmas = vmas;
	*ret_n = n;
	return 0;
}

/* The first entry that ends above @addr, from @k on. */
static size_t entry_above(const struct entries *entries, size_t k, uint64_t addr)
{
	while (k < entries->n && entries->v[k].end <= addr)
		k++;
	return k;
}

static int load_vma(struct bunshin_task *task, const struct bunshin_vma *vma, const struct bunshin_pages *p,
		    const struct entries *entries, size_t k)
{
	struct bunshin_seg *seg = NULL;

	if (vma->kind == BUNSHIN_WHOLE)
		seg = bunshin_seg_whole(task, vma);
	if (vma->kind == BUNSHIN_WHOLE && !seg)
		return -1;
	for (; k < entries->n && entries->v[k].start < vma->end; k++) {
		const struct entry *e = &entries->v[k];
		uint64_t start = max_t(uint64_t, e->start, vma->start), end = min_t(uint64_t, e->end, vma->end);

		if (vma->kind != BUNSHIN_WHOLE)
			seg = bunshin_seg_run(task, vma, start, end);
		if (!seg || read_pages(p, e->at + (off_t)(start - e->start), seg->addr + (start - seg->start), end - start))
			return -1;
	}
	return 0;
}

/* As after a record: what has no pages has no segment, and needs no room. */
static void mark_empty(struct bunshin_vma *vmas, size_t n, const struct entries *entries)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++) {
		k = entry_above(entries, k, vmas[i].start);
		if (k == entries->n || entries->v[k].start >= vmas[i].end)
			vmas[i].kind = 0;
	}
}

static int load_vmas(pid_t vpid, struct bunshin_vma *vmas, size_t n, const struct bunshin_pages *p,
		     const struct entries *entries)
{
	struct bunshin_task *task;
	size_t i, k = 0;

	mark_empty(vmas, n, entries);
	task = bunshin_task_get(vpid, vmas, n);
	if (!task)
		return -1;
	for (i = 0; i < n; i++) {
		k = entry_above(entries, k, vmas[i].start);
		if (vmas[i].kind && load_vma(task, &vmas[i], p, entries, k))
			return -1;
	}
	return bunshin_task_commit(task);
}

static int load_task(int dir, pid_t vpid)
{
	struct bunshin_vma *vmas = NULL;
	struct entries entries = {};
	struct bunshin_pages p;
	size_t n = 0;
	int ret;

	if (pages_open(dir, CR_FD_PAGEMAP, vpid, O_RSTR, &p))
		return -1;
	ret = read_entries(p.map, &entries) || read_vmas(dir, vpid, &vmas, &n) || load_vmas(vpid, vmas, n, &p, &entries);
	pages_close(&p);
	xfree(entries.v);
	xfree(vmas);
	return ret ? -1 : 0;
}

static int load_shm(int dir, uint64_t id)
{
	struct entries entries = {};
	struct bunshin_pages p;
	int ret = -1;
	char *to;
	size_t i;

	if (pages_open(dir, CR_FD_SHMEM_PAGEMAP, id, O_RSTR, &p))
		return -1;
	if (!read_entries(p.map, &entries)) {
		to = bunshin_shm_make(id, entries.n ? entries.v[entries.n - 1].end : PAGE_SIZE);
		ret = to ? 0 : -1;
	}
	for (i = 0; i < entries.n && !ret; i++) {
		const struct entry *e = &entries.v[i];

		ret = bunshin_shm_populate(id, e->start, e->end) || read_pages(&p, e->at, to + e->start, e->end - e->start);
	}
	pages_close(&p);
	xfree(entries.v);
	return ret ? -1 : 0;
}

static int load_named(int dir, const char *name)
{
	unsigned long id;
	int end = 0;

	if (sscanf(name, "pagemap-shmem-%lu.img%n", &id, &end) == 1 && end && !name[end])
		return load_shm(dir, id);
	end = 0;
	if (sscanf(name, "pagemap-%lu.img%n", &id, &end) == 1 && end && !name[end])
		return load_task(dir, id);
	return 0;
}

int bunshin_load(int dir, int images)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *item;

	if (!list) {
		pr_perror("cannot list the images");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	while (!ret && (item = readdir(list)))
		ret = load_named(dir, item->d_name);
	closedir(list);
	return ret ?: copy_images(dir, images);
}
