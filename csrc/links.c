/* SPDX-License-Identifier: Apache-2.0 */
#include "links.h"

#include <stdlib.h>

#include "base/text.h"

static size_t slot_of(const struct bsh_links *links, ino_t ino)
{
	size_t slot = (size_t)(ino * 0x9e3779b97f4a7c15ULL) & (links->size - 1);

	while (links->slots[slot].path && links->slots[slot].ino != ino)
		slot = (slot + 1) & (links->size - 1);
	return slot;
}

const char *bsh_links_find(const struct bsh_links *links, ino_t ino)
{
	return links->n ? links->slots[slot_of(links, ino)].path : NULL;
}

/* Keeps the table at most half full. */
static void grow(struct bsh_links *links)
{
	struct bsh_links old = *links;

	if (links->n * 2 < links->size)
		return;
	links->size = old.size ? old.size * 2 : 64;
	links->slots = bsh_alloc(links->size * sizeof(*links->slots));
	for (size_t i = 0; i < old.size; i++)
		if (old.slots[i].path)
			links->slots[slot_of(links, old.slots[i].ino)] = old.slots[i];
	free(old.slots);
}

void bsh_links_add(struct bsh_links *links, ino_t ino, const char *path)
{
	grow(links);
	links->slots[slot_of(links, ino)] = (struct bsh_link){.ino = ino, .path = bsh_strdup(path)};
	links->n++;
}

void bsh_links_release(struct bsh_links *links)
{
	for (size_t i = 0; i < links->size; i++)
		free(links->slots[i].path);
	free(links->slots);
	*links = (struct bsh_links){0};
}
