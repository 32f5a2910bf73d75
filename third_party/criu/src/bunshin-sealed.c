// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sealed mappings: of a file, and never writable. They have no pages of their own, and looking through all code that a
 * browser maps takes as long as all the rest. Made writable for a moment, one gets such pages by a fault of its process.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bunshin-pool.h"

static int compare_starts(const void *a, const void *b)
{
	const struct bunshin_range *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

uint64_t bunshin_faults_of(pid_t pid)
{
	unsigned long minor, major;
	char path[64], text[1024], *name_end;
	uint64_t faults = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = '\0';
	name_end = strrchr(text, ')');
	if (name_end && sscanf(name_end, ") %*c %*d %*d %*d %*d %*d %*u %lu %*u %lu", &minor, &major) == 2)
		faults = minor + major;
	return faults;
}

void bunshin_sealed_mark(const struct bunshin_task *task, uint64_t faults, struct bunshin_vma *vmas, size_t n)
{
	bool still = task && task->sealed.n && task->faults && task->faults == faults;
	size_t i;

	for (i = 0; i < n; i++) {
		struct bunshin_range key = { vmas[i].start }, *found;

		vmas[i].sealed = 0;
		if (!still || vmas[i].kind == BUNSHIN_WHOLE || (vmas[i].prot & PROT_WRITE))
			continue;
		found = bsearch(&key, task->sealed.v, task->sealed.n, sizeof(key), compare_starts);
		vmas[i].sealed = found && found->end == vmas[i].end;
	}
}

int bunshin_sealed_keep(struct bunshin_task *task, const struct bunshin_vma *vmas, size_t n, const struct bunshin_ranges *source)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++) {
		while (k < source->n && source->v[k].end <= vmas[i].start)
			k++;
		if (!vmas[i].sealed || (k < source->n && source->v[k].start < vmas[i].end))
			continue;
		/* Neighbours stay apart. */
		if (bunshin_ranges_push(&task->sealed, vmas[i].start, vmas[i].end))
			return -1;
	}
	return 0;
}
