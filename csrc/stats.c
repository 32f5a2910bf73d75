/* SPDX-License-Identifier: Apache-2.0 */
/* What a workspace takes: memory by who shares it, page tables, files. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "host/pagemap.h"
#include "host/procfs.h"
#include "workspace.h"

#define PAGE 4096ULL
#define RESERVED_MIN (1ULL << 30) /* larger ones without any access are taken for mere reservations */

/*
 * Pages that are mapped once in all are unique at once. The others are counted:
 * a page is still the workspace's own when all its mappings are found in here.
 */
struct census {
	unsigned long long exclusive_pages;
	uint64_t *pfns; /* one for each mapping of a page that is mapped more than once */
	size_t n;
	size_t size;
};

static int note_pages(void *context, uint64_t address, const uint64_t *entries, size_t n)
{
	struct census *census = context;

	(void)address;
	if (census->n + n > census->size) {
		size_t size = (census->n + n) * 2;
		uint64_t *more = realloc(census->pfns, size * sizeof(*more));

		if (!more)
			return -ENOMEM;
		census->pfns = more;
		census->size = size;
	}
	for (size_t i = 0; i < n; i++) {
		if (!(entries[i] & BSH_PAGE_PRESENT))
			continue;
		if (entries[i] & BSH_PAGE_EXCLUSIVE)
			census->exclusive_pages++;
		else
			census->pfns[census->n++] = entries[i] & BSH_PAGE_PFN;
	}
	return 0;
}

static bool is_reservation(const struct bsh_vma *vma)
{
	const unsigned int access = BSH_VMA_READ | BSH_VMA_WRITE | BSH_VMA_EXEC;

	return !(vma->flags & access) && vma->end - vma->start >= RESERVED_MIN;
}

static int add_process_pages(const struct bsh_core *core, pid_t pid, struct census *census, struct bsh_error *err)
{
	auto_close int pagemap = -1;
	auto_free char *maps = NULL;
	const char *cursor;
	struct bsh_vma vma;
	int rc = bsh_proc_read(pid, "maps", &maps, err);

	if (rc == 0)
		rc = bsh_pagemap_open(pid, &pagemap, err);
	if (rc < 0)
		return rc;
	cursor = maps;
	while ((rc = bsh_maps_next(&cursor, &vma)) > 0) {
		if (!core->features->pagemap_scan && is_reservation(&vma))
			continue;
		/* The kernel's own page at the top answers no questions. */
		if (vma.start >> 63)
			continue;
		rc = bsh_pagemap_walk(pagemap, vma.start, vma.end, note_pages, census, err);
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? bsh_fail(err, -rc, "parse /proc/%d/maps", pid) : 0;
}

static int add_process(
	const struct bsh_core *core, pid_t pid, struct bsh_stats *stats, struct census *census, struct bsh_error *err)
{
	auto_free char *rollup = NULL;
	struct bsh_proc_status status;
	unsigned long long pss;
	int rc = bsh_proc_status_read(pid, &status, err);

	if (rc == 0)
		rc = bsh_proc_read(pid, "smaps_rollup", &rollup, err);
	if (rc < 0)
		return rc;
	/* A zombie has no memory and an empty file. */
	if (bsh_smaps_rollup_parse(rollup, "Pss", &pss) < 0)
		return 0;
	rc = add_process_pages(core, pid, census, err);
	if (rc < 0)
		return rc;
	stats->processes++;
	stats->threads += status.threads;
	stats->page_table_bytes += status.page_table_bytes;
	stats->pss_bytes += pss;
	return 0;
}

static int compare_pfns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* How often the kernel says that a page is mapped, read in windows since neighbours come together. */
struct counts {
	int fd;
	uint64_t first;
	size_t n;
	uint64_t window[512];
};

static int count_of(struct counts *counts, uint64_t pfn, uint64_t *ret_count, struct bsh_error *err)
{
	if (pfn < counts->first || pfn >= counts->first + counts->n) {
		ssize_t got =
			pread(counts->fd, counts->window, sizeof(counts->window), (off_t)(pfn * sizeof(uint64_t)));

		if (got <= 0)
			return bsh_fail(err, got < 0 ? errno : ENODATA, "read /proc/kpagecount");
		counts->first = pfn;
		counts->n = (size_t)got / sizeof(uint64_t);
	}
	*ret_count = counts->window[pfn - counts->first];
	return 0;
}

static int settle_census(struct census *census, struct bsh_stats *stats, struct bsh_error *err)
{
	struct counts counts = {.fd = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC)};
	int rc = counts.fd < 0 ? bsh_fail(err, errno, "open /proc/kpagecount") : 0;

	stats->unique_bytes = census->exclusive_pages * PAGE;
	qsort(census->pfns, census->n, sizeof(*census->pfns), compare_pfns);
	for (size_t i = 0, next; rc == 0 && i < census->n; i = next) {
		uint64_t mapped = 0;

		for (next = i + 1; next < census->n && census->pfns[next] == census->pfns[i]; next++)
			;
		rc = count_of(&counts, census->pfns[i], &mapped, err);
		if (next - i >= mapped)
			stats->unique_bytes += PAGE;
		else
			stats->shared_bytes += PAGE;
	}
	bsh_close_fd(&counts.fd);
	return rc;
}

static int gather(struct bsh_workspace *ws, struct bsh_stats *stats, struct bsh_error *err)
{
	struct census census = {0};
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int rc = bsh_cgroup_pids(&ws->cgroup, &pids, &n, err);

	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = add_process(ws->core, pids[i], stats, &census, err);
		if (rc == -ESRCH) /* ended meanwhile */
			rc = 0;
	}
	if (rc == 0)
		rc = settle_census(&census, stats, err);
	free(census.pfns);
	if (rc == 0)
		rc = bsh_disk_usage(ws->upper, &stats->layer_bytes, err);
	stats->kernel_bytes = bsh_cgroup_kernel_bytes(&ws->cgroup);
	return rc;
}

int bsh_workspace_stats(struct bsh_workspace *ws, struct bsh_stats *ret_stats, struct bsh_error *err)
{
	struct bsh_stats stats = {0};
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_check_alive(ws, err);
	if (rc == 0)
		rc = gather(ws, &stats, err);
	pthread_mutex_unlock(&ws->lock);
	if (rc < 0)
		return bsh_context(err, rc, "stats of %s", ws->record.id);
	*ret_stats = stats;
	return 0;
}
