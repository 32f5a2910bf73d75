// SPDX-License-Identifier: GPL-2.0-only
/*
 * Open files without a name, of a few megabytes and up: browsers keep some that are
 * allocated in full and nearly empty. Only pages that are not zero are recorded.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-pool.h"
#include "images/ghost-file.pb-c.h"
#include "log.h"
#include "page.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

/* Fewer zero pages than this between two others are recorded too: each chunk has a price. */
#define GAP_PAGES 16

static bool is_zero(const char *page)
{
	const uint64_t *words = (const void *)page;
	size_t i;

	for (i = 0; i < PAGE_SIZE / sizeof(*words); i += 8)
		if (words[i] | words[i + 1] | words[i + 2] | words[i + 3] | words[i + 4] | words[i + 5] | words[i + 6] |
		    words[i + 7])
			return false;
	return true;
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t put = write(fd, data, len);

		if (put <= 0) {
			pr_perror("cannot write a nameless file");
			return -1;
		}
		data += put;
		len -= put;
	}
	return 0;
}

/* As CRIU has it in its images: the entry's size, the entry, the data. */
static int put_chunk(int image, const char *map, size_t start, size_t end)
{
	GhostChunkEntry chunk = GHOST_CHUNK_ENTRY__INIT;
	unsigned char packed[4 + 64];
	uint32_t size;

	chunk.off = start;
	chunk.len = end - start;
	size = ghost_chunk_entry__pack(&chunk, packed + sizeof(size));
	memcpy(packed, &size, sizeof(size));
	return write_all(image, (char *)packed, sizeof(size) + size) || write_all(image, map + start, end - start) ? -1 : 0;
}

static int put_extent(int image, const char *map, size_t start, size_t end, size_t size)
{
	size_t first = 0, last = 0, at;

	/* [first, last): not zero, and not written yet. The file's last page is zero beyond its end. */
	for (at = start; at < end; at += PAGE_SIZE) {
		if (is_zero(map + at))
			continue;
		if (first < last && at - last > GAP_PAGES * PAGE_SIZE) {
			if (put_chunk(image, map, first, last))
				return -1;
			first = last;
		}
		if (first == last)
			first = at;
		last = at + PAGE_SIZE;
	}
	return first < last ? put_chunk(image, map, first, last < size ? last : size) : 0;
}

static int put_chunks(int fd, int image, const char *map, size_t size)
{
	off_t start = 0, end;
	int ret = 0;

	while (!ret && start < (off_t)size) {
		start = lseek(fd, start, SEEK_DATA);
		if (start < 0 && errno == ENXIO)
			break;
		end = start < 0 ? -1 : lseek(fd, start, SEEK_HOLE);
		if (end < 0) {
			pr_perror("cannot see what a nameless file holds");
			return -1;
		}
		ret = put_extent(image, map, start - start % PAGE_SIZE, end, size);
		start = end;
	}
	return ret;
}

int bunshin_ghost_fill(int fd, int image, size_t size, bool chunks)
{
	char *map;
	int ret;

	if (!size)
		return 0;
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		pr_perror("cannot map a nameless file");
		return -1;
	}
	ret = chunks ? put_chunks(fd, image, map, size) : write_all(image, map, size);
	munmap(map, size);
	return ret;
}
