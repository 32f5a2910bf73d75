/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_PROCMAP_H
#define BUNSHIN_PROCMAP_H
/* PROCMAP_QUERY on /proc/PID/maps (6.11), in its own words: older headers lack it. */
#include <stdint.h>
#include <sys/ioctl.h>

struct bunshin_procmap {
	uint64_t size, flags, addr;
	uint64_t start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor;
	uint32_t name_size, build_id_size;
	uint64_t name, build_id;
};

#define BUNSHIN_PROCMAP_QUERY _IOWR('f', 17, struct bunshin_procmap)
#define BUNSHIN_PROCMAP_READ 0x01
#define BUNSHIN_PROCMAP_WRITE 0x02
#define BUNSHIN_PROCMAP_EXEC 0x04
#define BUNSHIN_PROCMAP_SHARED 0x08
#define BUNSHIN_PROCMAP_OR_NEXT 0x10

#endif
