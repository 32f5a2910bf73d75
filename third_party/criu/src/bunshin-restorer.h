/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_RESTORER_H
#define BUNSHIN_RESTORER_H
/* Included by the restorer blob alone. */
#include "bunshin-moves.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* What it leaves behind goes with the rest of the arena, at a stroke: unmapping each piece would cut that up first. */
static bool bunshin_move_pages(const struct bunshin_move *m)
{
	unsigned long flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	return sys_mremap(m->from, m->len, m->len, flags | MREMAP_DONTUNMAP, m->to) == m->to ||
	       sys_mremap(m->from, m->len, m->len, flags, m->to) == m->to;
}

static int bunshin_move(struct task_restore_args *args, bool mapped)
{
	unsigned int i;

	for (i = 0; i < args->bunshin_n_moves; i++) {
		struct bunshin_move *m = &args->bunshin_moves[i];

		if (mapped != (m->what != BUNSHIN_MOVE_VMA))
			continue;
		if (m->what == BUNSHIN_MOVE_COPY) {
			memcpy((void *)(unsigned long)m->to, (void *)(unsigned long)m->from, m->len);
			continue;
		}
		if (!bunshin_move_pages(m)) {
			pr_err("Can't move %lx from the pool to %lx\n", (unsigned long)m->from, (unsigned long)m->to);
			return -1;
		}
	}
	/* The rest of the arena: nothing of it is the task's. */
	if (mapped && args->bunshin_n_moves)
		return sys_munmap((void *)args->premmapped_addr, args->premmapped_len);
	return 0;
}

#endif
