/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Files with several names, while they are copied: where the first went, so that the others become links of it. */
#include <stddef.h>
#include <sys/types.h>

/* A hash table; start from {0}. */
struct bsh_links {
	struct bsh_link {
		ino_t ino;
		char *path; /* NULL: a free slot */
	} * slots;
	size_t n, size;
};

const char *bsh_links_find(const struct bsh_links *links, ino_t ino); /* NULL if it is not there */
void bsh_links_add(struct bsh_links *links, ino_t ino, const char *path);
void bsh_links_release(struct bsh_links *links);
