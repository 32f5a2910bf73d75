/* SPDX-License-Identifier: Apache-2.0 */
/* brk, malloc, realloc that moves by mremap, and explicit mremap: grow, shrink and move after the fork. */
#include "guest.h"

static char *broken, *large, *moved;
static size_t large_size = 8 << 20, moved_size = 1 << 20;

void guest_setup(void)
{
	broken = sbrk(1 << 20);
	large = malloc(large_size);
	moved = mmap(NULL, moved_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(broken != (void *)-1 && large && moved != MAP_FAILED);
}

void guest_put(const char *tag)
{
	strcpy(broken + 5000, tag);
	strcpy(large + large_size - TAG_SIZE, tag);
	strcpy(moved + moved_size - TAG_SIZE, tag);
}

void guest_check(const char *tag)
{
	char *more;

	CHECK_TAG(broken + 5000, tag);
	CHECK_TAG(large + large_size - TAG_SIZE, tag);
	CHECK_TAG(moved + moved_size - TAG_SIZE, tag);
	more = sbrk(65536);
	CHECK(more != (void *)-1);
	for (int i = 0; i < 65536; i++)
		CHECK(more[i] == 0);
	large = realloc(large, large_size * 2);
	CHECK(large);
	CHECK_TAG(large + large_size - TAG_SIZE, tag);
	large = realloc(large, large_size);
	CHECK(large);
	moved = mremap(moved, moved_size, moved_size + (1 << 20), MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	CHECK_TAG(moved + moved_size - TAG_SIZE, tag);
	CHECK(moved[moved_size + 4096] == 0);
	moved = mremap(moved, moved_size + (1 << 20), moved_size, 0);
	CHECK(moved != MAP_FAILED);
}
