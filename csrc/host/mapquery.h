/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* PROCMAP_QUERY (6.11), an ioctl on /proc/PID/maps, in its own words: older headers lack it. */
#include <stdint.h>
#include <sys/ioctl.h>

struct bsh_map_query {
	uint64_t size, flags, addr;
	uint64_t start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor;
	uint32_t name_size, build_id_size;
	uint64_t name, build_id;
};
#define BSH_MAP_QUERY _IOWR('f', 17, struct bsh_map_query)
#define BSH_MAP_QUERY_SHARED 0x08
#define BSH_MAP_QUERY_OR_NEXT 0x10
#define BSH_MAP_QUERY_FILE 0x20
