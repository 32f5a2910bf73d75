/* SPDX-License-Identifier: Apache-2.0 */
#include "host/hugepages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "host/mapquery.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

int bsh_huge_mapping_find_if_alive(pid_t pid, struct bsh_huge_mapping *ret_mapping, struct bsh_error *err)
{
	struct bsh_map_query query = {.size = sizeof(query), .flags = BSH_MAP_QUERY_FILE | BSH_MAP_QUERY_OR_NEXT};
	uint64_t plain = (uint64_t)sysconf(_SC_PAGESIZE);
	auto_close int maps = -1;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = open(path, O_RDONLY | O_CLOEXEC);
	if (maps < 0)
		return errno == ENOENT || errno == ESRCH ? 0 : bsh_fail(err, errno, "open %s", path);
	while (ioctl(maps, BSH_MAP_QUERY, &query) == 0) {
		if (query.page_size > plain) {
			*ret_mapping = (struct bsh_huge_mapping){query.start, query.end, query.page_size};
			return 1;
		}
		query.addr = query.end;
	}
	if (errno == ENOENT || errno == ESRCH || errno == ENOTTY)
		return 0;
	return bsh_fail(err, errno, "ask for the mappings of pid %d", pid);
}

bool bsh_huge_page_is_free(uint64_t page_bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzll(page_bytes) << MAP_HUGE_SHIFT;
	/* It is reserved at once, and not touched. */
	void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (page == MAP_FAILED)
		return false;
	munmap(page, page_bytes);
	return true;
}
