// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared memory of a snapshot: anonymous, memfd, System V. Each object has
 * its populated pages in the pool as private memory; a branch fills its own object from
 * there, see bunshin-filler.c. Pages that did not change since the parent's snapshot stay shared between pools.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bunshin-pool.h"
#include "log.h"
#include "page.h"
#include "util.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define CHUNK (64u * PAGE_SIZE)
#define HUGE (2ull << 20)
#define ROOM (4ull << 30)

struct shm {
	uint64_t id, size;
	char *addr;
	struct bunshin_ranges data; /* populated, by offset */
	bool seen;		    /* by the snapshot in the making */
};

static struct shm *shms;
static size_t n_shms;

static struct shm *shm_find(uint64_t id)
{
	size_t i;

	for (i = 0; i < n_shms; i++)
		if (shms[i].id == id)
			return &shms[i];
	return NULL;
}

/* Objects lie close together, for what is full of them to be huge pages: each branch's restore is a fork of the pool. */
static char *shm_place(uint64_t size)
{
	static char *at, *end;

	if ((uint64_t)(end - at) < size) {
		uint64_t room = max_t(uint64_t, ROOM, round_up(size, HUGE)) + HUGE;
		char *got = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (got == MAP_FAILED)
			return MAP_FAILED;
		at = (char *)round_up((uint64_t)got, HUGE);
		end = got + room;
	}
	at += size;
	return mmap(at - size, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		    0);
}

static void shm_release(struct shm *shm)
{
	if (shm->addr)
		munmap(shm->addr, shm->size);
	bunshin_ranges_free(&shm->data);
}

static struct shm *shm_get(uint64_t id, uint64_t size)
{
	struct shm *shm = shm_find(id);

	if (!shm) {
		struct shm *all = xrealloc(shms, (n_shms + 1) * sizeof(*all));

		if (!all)
			return NULL;
		shms = all;
		shm = &all[n_shms++];
	} else if (shm->size == size) {
		return shm;
	} else {
		shm_release(shm);
	}
	*shm = (struct shm){ .id = id, .size = size };
	shm->addr = shm_place(size);
	if (shm->addr == MAP_FAILED) {
		pr_perror("cannot map %lu KiB of shared memory", (unsigned long)size >> 10);
		shm->addr = NULL;
		shm->size = 0;
		return NULL;
	}
	return shm;
}

/* Writes only pages that differ: the others stay shared with the parent's pool. */
static void take_chunk(char *to, const char *from, size_t len)
{
	size_t at;

	for (at = 0; at < len; at += PAGE_SIZE)
		if (memcmp(to + at, from + at, PAGE_SIZE))
			memcpy(to + at, from + at, PAGE_SIZE);
}

static int take_extent(struct shm *shm, int fd, uint64_t start, uint64_t end, bool known)
{
	static char buffer[CHUNK] __attribute__((aligned(4096)));

	if (bunshin_ranges_add(&shm->data, start, end))
		return -1;
	while (start < end) {
		size_t want = min_t(uint64_t, known ? CHUNK : 1u << 30, end - start);
		ssize_t got = pread(fd, known ? buffer : shm->addr + start, want, start);

		if (got < 0) {
			pr_perror("cannot read shared memory %#" PRIx64, shm->id);
			return -1;
		}
		if (!got)
			break; /* the file ends inside of its last page */
		if (known) {
			size_t whole = round_up((size_t)got, (size_t)PAGE_SIZE);

			memset(buffer + got, 0, whole - got);
			take_chunk(shm->addr + start, buffer, whole);
		}
		start += got;
	}
	return 0;
}

/* Pages that were populated before and are holes now. */
static void drop_holes(struct shm *shm, const struct bunshin_ranges *before)
{
	size_t i, k = 0;

	for (i = 0; i < before->n; i++) {
		uint64_t at = before->v[i].start, end = before->v[i].end;

		while (at < end) {
			uint64_t stop;

			while (k < shm->data.n && shm->data.v[k].end <= at)
				k++;
			if (k < shm->data.n && shm->data.v[k].start <= at) {
				at = shm->data.v[k].end;
				continue;
			}
			stop = k < shm->data.n && shm->data.v[k].start < end ? shm->data.v[k].start : end;
			madvise(shm->addr + at, stop - at, MADV_DONTNEED);
			at = stop;
		}
	}
}

int bunshin_shm_fill(int fd, uint64_t id, uint64_t size)
{
	struct bunshin_ranges before;
	struct shm *shm;
	off_t start = 0, end;
	bool known;
	int ret = 0;

	size = round_up(size, (uint64_t)PAGE_SIZE);
	known = shm_find(id) != NULL;
	shm = shm_get(id, size);
	if (!shm)
		return -1;
	known = known && shm->data.n;
	shm->seen = true;
	before = shm->data;
	shm->data = (struct bunshin_ranges){};
	while (!ret && start < (off_t)size) {
		start = lseek(fd, start, SEEK_DATA);
		end = start < 0 ? -1 : lseek(fd, start, SEEK_HOLE);
		if (start < 0 && errno == ENXIO)
			break;
		if (start < 0 || end < 0) {
			pr_perror("cannot see what shared memory %#" PRIx64 " holds", id);
			ret = -1;
			break;
		}
		end = min_t(uint64_t, round_up((uint64_t)end, (uint64_t)PAGE_SIZE), size);
		ret = take_extent(shm, fd, start, end, known);
		start = end;
	}
	if (!ret)
		drop_holes(shm, &before);
	bunshin_ranges_free(&before);
	return ret;
}

void bunshin_shm_begin(void)
{
	size_t i;

	for (i = 0; i < n_shms; i++)
		shms[i].seen = false;
}

void bunshin_shm_sweep(void)
{
	size_t i, kept = 0;

	for (i = 0; i < n_shms; i++) {
		if (shms[i].seen)
			shms[kept++] = shms[i];
		else
			shm_release(&shms[i]);
	}
	n_shms = kept;
}

int bunshin_shm_settle(void)
{
	size_t i, k;

	/* As in the arenas: in a forked pool pages are its parent's as well. */
	if (bunshin_fill_inherited)
		return 0;
	for (i = 0; i < n_shms; i++) {
		const struct bunshin_ranges *data = &shms[i].data;

		for (k = 0; k < data->n; k++)
			if (bunshin_populate_add(shms[i].addr + data->v[k].start, data->v[k].end - data->v[k].start))
				return -1;
	}
	bunshin_populate(true);
	return 0;
}

void bunshin_shm_advise(int advice)
{
	size_t i;

	for (i = 0; i < n_shms; i++)
		if (shms[i].addr && madvise(shms[i].addr, shms[i].size, advice))
			pr_perror("cannot advise %d on shared memory", advice);
}

bool bunshin_shm_id(size_t i, uint64_t *ret_id)
{
	if (i >= n_shms)
		return false;
	*ret_id = shms[i].id;
	return true;
}

int bunshin_shm_put(size_t i, struct bunshin_pages *pages)
{
	const struct shm *shm = &shms[i];
	size_t k;

	for (k = 0; k < shm->data.n; k++) {
		struct bunshin_range *r = &shm->data.v[k];

		if (bunshin_pages_put(pages, r->start, shm->addr + r->start, r->end - r->start))
			return -1;
	}
	return 0;
}

char *bunshin_shm_make(uint64_t id, uint64_t size)
{
	struct shm *shm = shm_get(id, size);

	return shm ? shm->addr : NULL;
}

int bunshin_shm_populate(uint64_t id, uint64_t start, uint64_t end)
{
	struct shm *shm = shm_find(id);

	return shm ? bunshin_ranges_add(&shm->data, start, end) : -1;
}

/*
 * Written, not mapped: a page that is written as a whole is not made zero before, and needs no fault. Returns how far; not
 * past the object's end, which would move; huge pages of hugetlb refuse to be written.
 */
static uint64_t write_range(int fd, const char *from, const struct bunshin_range *r, uint64_t end)
{
	uint64_t at = r->start, stop = min_t(uint64_t, r->end, end & PAGE_MASK);
	ssize_t wrote = 1;

	while (at < stop && wrote > 0) {
		wrote = pwrite(fd, from + at, stop - at, at);
		at += max_t(ssize_t, wrote, 0);
	}
	return at;
}

static int map_range(int fd, const char *from, uint64_t start, uint64_t end, const struct stat *st)
{
	uint64_t size = round_up(end, (uint64_t)st->st_blksize);
	char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (to == MAP_FAILED) {
		pr_perror("cannot map shared memory");
		return -1;
	}
	memcpy(to + start, from + start, end - start);
	munmap(to, size);
	return 0;
}

int bunshin_shm_write(uint64_t id, uint64_t size, int fd)
{
	const struct shm *shm = shm_find(id);
	struct stat st;
	size_t i;

	if (!shm) {
		pr_err("shared memory %#" PRIx64 " is not in the pool\n", id);
		return -1;
	}
	if (fstat(fd, &st)) {
		pr_perror("cannot look at shared memory %#" PRIx64, id);
		return -1;
	}
	for (i = 0; i < shm->data.n; i++) {
		const struct bunshin_range *r = &shm->data.v[i];
		uint64_t at;

		if (r->end > size) {
			pr_err("shared memory %#" PRIx64 " is larger than recorded\n", id);
			return -1;
		}
		at = write_range(fd, shm->addr, r, st.st_size);
		if (at < r->end && map_range(fd, shm->addr, at, r->end, &st))
			return -1;
	}
	return 0;
}
