// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which private pages a process has, and in which mappings. What is empty
 * costs nothing where the kernel has PAGEMAP_SCAN (6.7); a browser reserves terabytes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bunshin-pool.h"
#include "kerndat.h"
#include "log.h"
#include "mem.h"
#include "mman.h"
#include "page.h"
#include "pagemap_scan.h"
#include "proc_parse.h"
#include "util.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define SCAN_REGIONS 2048
#define READ_ENTRIES 8192
#define RESERVATION_MIN (1ull << 30)
#define PRIVATE_PAGE(pme) \
	(((pme) & (PME_PRESENT | PME_SWAP)) && !((pme) & (PME_FILE | PME_GUARD_REGION)) && !page_is_zero(pme))

void bunshin_ranges_free(struct bunshin_ranges *ranges)
{
	xfree(ranges->v);
	*ranges = (struct bunshin_ranges){};
}

int bunshin_ranges_push(struct bunshin_ranges *ranges, uint64_t start, uint64_t end)
{
	if (ranges->n == ranges->room) {
		size_t room = ranges->room ? 2 * ranges->room : 256;
		struct bunshin_range *v = xrealloc(ranges->v, room * sizeof(*v));

		if (!v)
			return -1;
		ranges->v = v;
		ranges->room = room;
	}
	ranges->v[ranges->n++] = (struct bunshin_range){ start, end };
	return 0;
}

int bunshin_ranges_add(struct bunshin_ranges *ranges, uint64_t start, uint64_t end)
{
	if (!ranges->n || ranges->v[ranges->n - 1].end != start)
		return bunshin_ranges_push(ranges, start, end);
	ranges->v[ranges->n - 1].end = end;
	return 0;
}

size_t bunshin_ranges_find(const struct bunshin_ranges *ranges, uint64_t addr)
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

/* @anon: there is no file, so no page need be asked whether it is one's; that takes most of the time. */
static int scan_by_ioctl(int fd, uint64_t start, uint64_t end, bool anon, struct bunshin_ranges *ranges,
			 struct bunshin_ranges *watched)
{
	uint64_t not = anon ? PAGE_IS_PFNZERO : PAGE_IS_FILE | PAGE_IS_PFNZERO;
	static struct page_region regions[SCAN_REGIONS];
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.start = start,
		.end = end,
		.vec = (uint64_t)regions,
		.vec_len = SCAN_REGIONS,
		.category_mask = not,
		.category_inverted = not,
		.category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
		.return_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_WPALLOWED,
	};

	/* Guards read as swapped entries; kernels that have them can tell them apart. */
	if (kdat.has_pagemap_scan_guard_pages) {
		arg.category_mask |= PAGE_IS_GUARD;
		arg.category_inverted |= PAGE_IS_GUARD;
	}
	while (arg.start < end) {
		long i, n = ioctl(fd, PAGEMAP_SCAN, &arg);

		if (n < 0) {
			pr_perror("cannot scan a pagemap");
			return -1;
		}
		for (i = 0; i < n; i++)
			if (bunshin_ranges_add(ranges, regions[i].start, regions[i].end) ||
			    (watched && regions[i].categories & PAGE_IS_WPALLOWED &&
			     bunshin_ranges_add(watched, regions[i].start, regions[i].end)))
				return -1;
		/*
		 * walk_end is where the kernel last had to empty its own buffer, which need not be
		 * where it stopped (seen on 6.18): only a full vector means that there is more.
		 */
		if (n < SCAN_REGIONS)
			break;
		arg.start = max_t(uint64_t, arg.walk_end, regions[n - 1].end);
	}
	return 0;
}

static int scan_by_read(int fd, uint64_t start, uint64_t end, struct bunshin_ranges *ranges)
{
	static uint64_t entries[READ_ENTRIES];

	while (start < end) {
		size_t want = min_t(uint64_t, READ_ENTRIES, (end - start) / PAGE_SIZE), i;
		ssize_t got = pread(fd, entries, want * sizeof(*entries), start / PAGE_SIZE * sizeof(*entries));

		if (got < (ssize_t)sizeof(*entries)) {
			pr_perror("cannot read a pagemap");
			return -1;
		}
		for (i = 0; i < got / sizeof(*entries); i++)
			if (PRIVATE_PAGE(entries[i]) &&
			    bunshin_ranges_add(ranges, start + i * PAGE_SIZE, start + (i + 1) * PAGE_SIZE))
				return -1;
		start += i * PAGE_SIZE;
	}
	return 0;
}

static int scan(int fd, uint64_t start, uint64_t end, bool anon, struct bunshin_ranges *ranges,
		struct bunshin_ranges *watched)
{
	/* [vsyscall] lies above. */
	end = min_t(uint64_t, end, kdat.task_size);
	if (start >= end)
		return 0;
	if (kdat.has_pagemap_scan)
		return scan_by_ioctl(fd, start, end, anon, ranges, watched);
	return scan_by_read(fd, start, end, ranges);
}

int bunshin_scan(int pagemap_fd, uint64_t start, uint64_t end, struct bunshin_ranges *ret_ranges)
{
	ret_ranges->n = 0;
	return scan(pagemap_fd, start, end, false, ret_ranges, NULL);
}

/*
 * Where a hole costs as much as a page, a large mapping that nobody may touch is taken for what it is: address
 * space set aside (a browser has terabytes of it). No page can come into being there.
 */
static bool is_reservation(const struct bunshin_vma *vma)
{
	return !vma->prot && vma->end - vma->start > RESERVATION_MIN;
}

static bool is_anon(const struct bunshin_vma *vma)
{
	return vma->kind == BUNSHIN_WHOLE && !vma->whole;
}

static bool worth_a_scan(const struct bunshin_vma *vma, bool all)
{
	return vma->kind && (all || !vma->sealed) && (kdat.has_pagemap_scan || !is_reservation(vma));
}

int bunshin_scan_vmas(int pagemap_fd, const struct bunshin_vma *vmas, size_t n, bool all, struct bunshin_ranges *ret_ranges,
		      struct bunshin_ranges *ret_watched)
{
	size_t i, first;

	ret_ranges->n = ret_watched->n = 0;
	/* Neighbours of a kind are scanned at a stroke, with what lies between them. */
	for (i = 0; i < n; i++) {
		if (!worth_a_scan(&vmas[i], all))
			continue;
		for (first = i; i + 1 < n && kdat.has_pagemap_scan && worth_a_scan(&vmas[i + 1], all) &&
				is_anon(&vmas[i + 1]) == is_anon(&vmas[first]);
		     i++)
			;
		if (scan(pagemap_fd, vmas[first].start, vmas[i].end, is_anon(&vmas[first]), ret_ranges,
			 ret_watched))
			return -1;
	}
	return 0;
}

static uint32_t parse_prot(const char *perms)
{
	return (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) | (perms[2] == 'x' ? PROT_EXEC : 0);
}

static bool parse_header(const char *line, struct bunshin_vma *vma)
{
	unsigned long start, end, offset, inode;
	char perms[5], device[16];
	int name = 0;

	if (sscanf(line, "%lx-%lx %4s %lx %15s %lu %n", &start, &end, perms, &offset, device, &inode, &name) < 6)
		return false;
	*vma = (struct bunshin_vma){ .start = start, .end = end, .prot = parse_prot(perms), .flags = MAP_PRIVATE };
	line += name;
	vma->aio = !strncmp(line, "/[aio]", 6);
	if (perms[3] != 'p' || !strncmp(line, "[vvar", 5) || !strncmp(line, "[vsyscall]", 10))
		return true;
	vma->kind = inode ? BUNSHIN_RUN : BUNSHIN_WHOLE;
	vma->file = inode;
	vma->whole = !strncmp(line, "[vdso]", 6);
	return true;
}

/*
 * A private mapping is accounted for from when it is first writable, for ever. A file's that never was has no pages of
 * its own, unless a debugger put them there.
 */
static void parse_flags(const char *line, struct bunshin_vma *vma)
{
	vma->sealed = vma->kind == BUNSHIN_RUN && !(vma->prot & PROT_WRITE);
	for (line = strchr(line, ' '); line && line[1]; line = strchr(line + 1, ' ')) {
		if (!strncmp(line, " gd", 3))
			vma->flags |= MAP_GROWSDOWN;
		else if (!strncmp(line, " ac", 3))
			vma->sealed = 0;
		else if (!strncmp(line, " nr", 3)) {
			vma->flags |= MAP_NORESERVE;
			vma->sealed = 0;
		}
		else if (!strncmp(line, " ht", 3))
			vma->kind = vma->kind ? BUNSHIN_COPY : 0;
		else if (!strncmp(line, " io", 3) || !strncmp(line, " pf", 3) || !strncmp(line, " dp", 3))
			vma->kind = 0;
	}
}

int bunshin_parse_vmas(const char *smaps, size_t size, struct bunshin_vma **ret_vmas, size_t *ret_n)
{
	FILE *f = fmemopen((void *)smaps, size, "r");
	struct bunshin_vma *vmas = NULL;
	size_t n = 0, room = 0, len = 0;
	char *line = NULL;
	int ret = -1;

	if (!f) {
		pr_perror("cannot read mappings");
		return -1;
	}
	while (getline(&line, &len, f) > 0) {
		struct bunshin_vma vma;

		if (n && !strncmp(line, "VmFlags:", 8)) {
			parse_flags(line, &vmas[n - 1]);
			continue;
		}
		/* Headers begin with an address, all other lines with a capital. */
		if ((line[0] >= 'A' && line[0] <= 'Z') || !parse_header(line, &vma))
			continue;
		if (n == room) {
			struct bunshin_vma *v = xrealloc(vmas, (room = room ? 2 * room : 256) * sizeof(*v));

			if (!v)
				goto out;
			vmas = v;
		}
		vmas[n++] = vma;
	}
	ret = 0;
	bunshin_mark_copies(vmas, n);
	*ret_vmas = vmas;
	*ret_n = n;
	vmas = NULL;
out:
	free(line);
	fclose(f);
	xfree(vmas);
	return ret;
}

static bool runs_code(const struct bunshin_vma *vmas, size_t n, uint64_t file)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (vmas[i].file == file && (vmas[i].prot & PROT_EXEC))
			return true;
	return false;
}

void bunshin_mark_copies(struct bunshin_vma *vmas, size_t n)
{
	uint64_t code = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		if (vmas[i].kind != BUNSHIN_RUN || vmas[i].file == code)
			continue;
		/* A file's mappings follow each other: its code need not be looked for each time. */
		if (runs_code(vmas, n, vmas[i].file))
			code = vmas[i].file;
		else
			vmas[i].kind = BUNSHIN_COPY;
	}
}

static int inner_pid(pid_t real, pid_t *ret_vpid)
{
	char path[64], line[512], *last;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", real);
	f = fopen(path, "re");
	if (!f)
		return -1;
	*ret_vpid = 0;
	while (!*ret_vpid && fgets(line, sizeof(line), f)) {
		if (strncmp(line, "NSpid:", 6))
			continue;
		last = strrchr(line, '\t');
		if (last)
			*ret_vpid = atoi(last);
	}
	fclose(f);
	return *ret_vpid > 0 ? 0 : -1;
}

struct tree {
	struct bunshin_pid *v;
	size_t n;
};

static int tree_add(struct tree *tree, pid_t real)
{
	struct bunshin_pid *v;
	pid_t vpid;

	/* It may have ended meanwhile. */
	if (inner_pid(real, &vpid))
		return 0;
	v = xrealloc(tree->v, (tree->n + 1) * sizeof(*v));
	if (!v)
		return -1;
	tree->v = v;
	tree->v[tree->n++] = (struct bunshin_pid){ real, vpid };
	return 0;
}

/* The children of each thread of a process join the tree. */
static int tree_descend(struct tree *tree, pid_t real)
{
	char path[320];
	struct dirent *item;
	int ret = 0, child;
	DIR *dir;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task", real);
	dir = opendir(path);
	if (!dir)
		return 0;
	while (!ret && (item = readdir(dir))) {
		if (item->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/children", real, item->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		while (!ret && fscanf(f, "%d", &child) == 1)
			ret = tree_add(tree, child);
		fclose(f);
	}
	closedir(dir);
	return ret;
}

int bunshin_read_tree(pid_t root, struct bunshin_pid **ret_pids, size_t *ret_n)
{
	struct tree tree = {};
	size_t i;

	if (tree_add(&tree, root))
		return -1;
	for (i = 0; i < tree.n; i++) {
		if (tree_descend(&tree, tree.v[i].real)) {
			xfree(tree.v);
			return -1;
		}
	}
	*ret_pids = tree.v;
	*ret_n = tree.n;
	return 0;
}
