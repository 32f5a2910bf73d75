/* SPDX-License-Identifier: Apache-2.0 */
#include "host/pagemap.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"

#define PAGE 4096ULL
#define CHUNK 4096U /* entries of one read: 16 MiB of address space */

/* PAGEMAP_SCAN (Linux 6.7) in its own words: headers of older systems lack it. */
struct scan_region {
	uint64_t start;
	uint64_t end;
	uint64_t categories;
};
struct scan_request {
	uint64_t size;
	uint64_t flags;
	uint64_t start;
	uint64_t end;
	uint64_t walk_end;
	uint64_t regions;
	uint64_t n_regions;
	uint64_t max_pages;
	uint64_t category_inverted;
	uint64_t category_mask;
	uint64_t category_anyof_mask;
	uint64_t return_mask;
};
#define SCAN_IOCTL _IOWR('f', 16, struct scan_request)
#define SCAN_PRESENT (1 << 3)
#define SCAN_SWAPPED (1 << 4)

int bsh_pagemap_open(pid_t pid, int *ret_fd, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/%d/pagemap", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return bsh_fail(err, errno == ENOENT ? ESRCH : errno, "open %s", path);
	*ret_fd = fd;
	return 0;
}

int bsh_pagemap_read(int fd, uint64_t start, uint64_t *entries, size_t n, struct bsh_error *err)
{
	size_t done = 0, len = n * sizeof(*entries);
	off_t at = (off_t)(start / PAGE * sizeof(*entries));

	while (done < len) {
		ssize_t got = pread(fd, (char *)entries + done, len - done, at + (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return bsh_fail(err, errno, "read pagemap at %#llx", (unsigned long long)start);
		if (got == 0)
			return bsh_fail(err, ESRCH, "read pagemap at %#llx", (unsigned long long)start);
		done += (size_t)got;
	}
	return 0;
}

static int visit_range(
	int fd, uint64_t start, uint64_t end, bsh_pagemap_visitor visit, void *context, struct bsh_error *err)
{
	uint64_t entries[CHUNK];

	while (start < end) {
		size_t n = (end - start) / PAGE < CHUNK ? (size_t)((end - start) / PAGE) : CHUNK;
		int rc = bsh_pagemap_read(fd, start, entries, n, err);

		if (rc < 0)
			return rc;
		rc = visit(context, start, entries, n);
		if (rc < 0)
			return rc;
		start += n * PAGE;
	}
	return 0;
}

/* The next ranges that have pages; -ENOTTY on kernels without PAGEMAP_SCAN. */
static long scan(int fd, uint64_t start, uint64_t end, struct scan_region *regions, size_t n, uint64_t *ret_walked)
{
	struct scan_request request = {
		.size = sizeof(request),
		.start = start,
		.end = end,
		.regions = (uint64_t)(uintptr_t)regions,
		.n_regions = n,
		.category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
		.return_mask = SCAN_PRESENT | SCAN_SWAPPED,
	};
	long found;

	do {
		found = ioctl(fd, SCAN_IOCTL, &request);
	} while (found < 0 && errno == EINTR);
	*ret_walked = request.walk_end;
	return found < 0 ? -errno : found;
}

/* Kernels without PAGEMAP_SCAN: every entry is read, so callers leave out what is merely reserved. */
int bsh_pagemap_walk(
	int fd, uint64_t start, uint64_t end, bsh_pagemap_visitor visit, void *context, struct bsh_error *err)
{
	struct scan_region regions[128];

	while (start < end) {
		uint64_t walked = end;
		long n = scan(fd, start, end, regions, sizeof(regions) / sizeof(regions[0]), &walked);

		if (n == -ENOTTY || n == -EINVAL)
			return visit_range(fd, start, end, visit, context, err);
		if (n < 0)
			return bsh_fail(err, (int)-n, "scan pagemap at %#llx", (unsigned long long)start);
		for (long i = 0; i < n; i++) {
			int rc = visit_range(fd, regions[i].start, regions[i].end, visit, context, err);

			if (rc < 0)
				return rc;
		}
		if (walked <= start)
			break;
		start = walked;
	}
	return 0;
}
