/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_RESTORER_H
#define BUNSHIN_RESTORER_H
/* Included by the restorer blob alone. */
#include "bunshin-moves.h"

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
		if (sys_mremap(m->from, m->len, m->len, MREMAP_MAYMOVE | MREMAP_FIXED, m->to) != m->to) {
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
