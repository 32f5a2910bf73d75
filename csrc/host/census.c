/* SPDX-License-Identifier: Apache-2.0 */
#include "host/census.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/features.h"
#include "host/pagemap.h"
#include "host/procfs.h"

#define USER_END 0x7ffffffff000ULL /* of four levels of page tables: what is asked for above is rare and slow */
#define RESERVED_MIN (1ULL << 30)  /* larger ones without any access are taken for mere reservations */
#define SWAP_BACKED (1ULL << 14)   /* in /proc/kpageflags: shared memory, if it is not anonymous */
#define WINDOW 512U
#define GAP_MAX 24U /* reading so many words in vain is cheaper than another call */

/* mapping = page frame << 17 | member << 1 | not anonymous: sorted, mappings of a page stand together, member by
 * member. */
static uint64_t pack(uint64_t pfn, size_t member, bool file)
{
	return pfn << 17 | (uint64_t)member << 1 | file;
}

static uint64_t page_of(uint64_t mapping)
{
	return mapping >> 17;
}

static size_t member_of(uint64_t mapping)
{
	return mapping >> 1 & 0xffff;
}

int bsh_census_init(
	struct bsh_census *census, const struct bsh_features *features, size_t n_members, struct bsh_error *err)
{
	*census = (struct bsh_census){.features = features, .n_members = n_members};
	if (n_members > BSH_CENSUS_MEMBERS_MAX)
		return bsh_fail(err, E2BIG, "%zu members in one account", n_members);
	census->exclusive = bsh_alloc((n_members + 1) * sizeof(*census->exclusive));
	return 0;
}

void bsh_census_release(struct bsh_census *census)
{
	free(census->exclusive);
	free(census->mappings);
	*census = (struct bsh_census){0};
}

/* ---- gathering ------------------------------------------------------------------- */

struct visit {
	struct bsh_census *census;
	size_t member;
};

static int make_room(struct bsh_census *census, size_t n)
{
	size_t size = (census->n + n) * 2;
	uint64_t *more;

	if (census->n + n <= census->size)
		return 0;
	more = realloc(census->mappings, size * sizeof(*more));
	if (!more)
		return -ENOMEM;
	census->mappings = more;
	census->size = size;
	return 0;
}

static int note_pages(void *context, uint64_t address, const uint64_t *entries, size_t n)
{
	struct visit *visit = context;
	struct bsh_census *census = visit->census;

	(void)address;
	if (make_room(census, n) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		bool file = entries[i] & BSH_PAGE_FILE;

		if (!(entries[i] & BSH_PAGE_PRESENT))
			continue;
		if (entries[i] & BSH_PAGE_EXCLUSIVE && !file)
			census->exclusive[visit->member]++;
		else
			census->mappings[census->n++] = pack(entries[i] & BSH_PAGE_PFN, visit->member, file);
	}
	return 0;
}

static bool is_reservation(const struct bsh_vma *vma)
{
	const unsigned int access = BSH_VMA_READ | BSH_VMA_WRITE | BSH_VMA_EXEC;

	return !(vma->flags & access) && vma->end - vma->start >= RESERVED_MIN;
}

/* Without PAGEMAP_SCAN, mapping by mapping. */
static int walk_maps(int pagemap, pid_t pid, struct visit *visit, struct bsh_error *err)
{
	auto_free char *maps = NULL;
	const char *cursor;
	struct bsh_vma vma;
	int rc = bsh_proc_read(pid, "maps", &maps, err);

	if (rc < 0)
		return rc;
	cursor = maps;
	while ((rc = bsh_maps_next(&cursor, &vma)) > 0) {
		/* The kernel's own page at the top answers no questions. */
		if (is_reservation(&vma) || vma.start >> 63)
			continue;
		rc = bsh_pagemap_walk(pagemap, vma.start, vma.end, note_pages, visit, err);
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? bsh_fail(err, -rc, "parse /proc/%d/maps", pid) : 0;
}

int bsh_census_add(struct bsh_census *census, size_t member, pid_t pid, struct bsh_error *err)
{
	struct visit visit = {.census = census, .member = member};
	auto_close int pagemap = -1;
	int rc = bsh_pagemap_open(pid, &pagemap, err);

	if (rc < 0)
		return rc;
	rc = census->features->pagemap_scan ? bsh_pagemap_walk(pagemap, 0, USER_END, note_pages, &visit, err)
					    : walk_maps(pagemap, pid, &visit, err);
	return rc == -ENOMEM ? bsh_fail(err, ENOMEM, "count the pages of pid %d", pid) : rc;
}

/* ---- settling -------------------------------------------------------------------- */

/* What the kernel says of neighbouring page frames. */
struct window {
	int counts_fd; /* how often each is mapped */
	int flags_fd;
	uint64_t first;
	size_t n;
	uint64_t counts[WINDOW];
	uint64_t flags[WINDOW];
};

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int read_words(int fd, const char *name, uint64_t first, size_t n, uint64_t *words, struct bsh_error *err)
{
	ssize_t got = pread(fd, words, n * sizeof(*words), (off_t)(first * sizeof(*words)));

	if (got < 0)
		return bsh_fail(err, errno, "read %s", name);
	/* Frames past the last memory block are a device's. */
	memset((char *)words + got, 0, n * sizeof(*words) - (size_t)got);
	return 0;
}

/* Moves the window to the page of mapping i and those that follow closely. */
static int move_window(struct window *window, const struct bsh_census *census, size_t i, struct bsh_error *err)
{
	uint64_t first = page_of(census->mappings[i]), last = first;
	bool files = false;
	int rc;

	for (; i < census->n; i++) {
		uint64_t page = page_of(census->mappings[i]);

		if (page - last > GAP_MAX || page - first >= WINDOW)
			break;
		last = page;
		files |= census->mappings[i] & 1;
	}
	window->first = first;
	window->n = (size_t)(last - first) + 1;
	rc = read_words(window->counts_fd, "/proc/kpagecount", first, window->n, window->counts, err);
	if (rc == 0 && files)
		rc = read_words(window->flags_fd, "/proc/kpageflags", first, window->n, window->flags, err);
	return rc;
}

static enum bsh_page_kind kind_of(const struct window *window, uint64_t mapping)
{
	if (!(mapping & 1))
		return BSH_PAGES_PRIVATE;
	return window->flags[page_of(mapping) - window->first] & SWAP_BACKED ? BSH_PAGES_SHM : BSH_PAGES_FILE;
}

static void add_page(struct bsh_page_counts *counts, enum bsh_page_kind kind, bool unique)
{
	if (unique)
		counts->unique[kind]++;
	else
		counts->shared[kind]++;
}

/* One page: mappings i to next. */
static void settle_page(const struct bsh_census *census, const struct window *window, size_t i, size_t next,
	struct bsh_page_counts *members, struct bsh_page_counts *all)
{
	enum bsh_page_kind kind = kind_of(window, census->mappings[i]);
	uint64_t mapped = window->counts[page_of(census->mappings[i]) - window->first];

	/* The page of zeros, of which nobody keeps count; or one that was given back meanwhile. */
	if (!mapped)
		return;
	add_page(all, kind, next - i >= mapped);
	for (size_t end; members && i < next; i = end) {
		size_t member = member_of(census->mappings[i]);

		for (end = i + 1; end < next && member_of(census->mappings[end]) == member; end++)
			;
		add_page(&members[member], kind, end - i >= mapped);
	}
}

static int settle_mappings(struct bsh_census *census, struct window *window, struct bsh_page_counts *members,
	struct bsh_page_counts *all, struct bsh_error *err)
{
	for (size_t i = 0, next; i < census->n; i = next) {
		uint64_t page = page_of(census->mappings[i]);

		if (page - window->first >= window->n) {
			int rc = move_window(window, census, i, err);

			if (rc < 0)
				return rc;
		}
		for (next = i + 1; next < census->n && page_of(census->mappings[next]) == page; next++)
			;
		settle_page(census, window, i, next, members, all);
	}
	return 0;
}

int bsh_census_settle(struct bsh_census *census, struct bsh_page_counts *ret_members, struct bsh_page_counts *ret_all,
	struct bsh_error *err)
{
	auto_close int counts_fd = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC);
	auto_close int flags_fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	auto_free struct window *window = bsh_alloc(sizeof(*window));

	if (counts_fd < 0 || flags_fd < 0)
		return bsh_fail(err, errno, "open /proc/kpage%s", counts_fd < 0 ? "count" : "flags");
	window->counts_fd = counts_fd;
	window->flags_fd = flags_fd;
	*ret_all = (struct bsh_page_counts){0};
	for (size_t i = 0; i < census->n_members; i++) {
		if (ret_members) {
			ret_members[i] = (struct bsh_page_counts){0};
			ret_members[i].unique[BSH_PAGES_PRIVATE] = census->exclusive[i];
		}
		ret_all->unique[BSH_PAGES_PRIVATE] += census->exclusive[i];
	}
	if (census->n)
		qsort(census->mappings, census->n, sizeof(*census->mappings), compare);
	return settle_mappings(census, window, ret_members, ret_all, err);
}
