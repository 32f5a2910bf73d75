/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_MOVES_H
#define BUNSHIN_MOVES_H
/*
 * What the restorer moves out of the inherited arena, once nothing but the arena and
 * itself is mapped. The arena meets none of the task's addresses, so order is free.
 */
#include <stdint.h>

enum {
	BUNSHIN_MOVE_VMA, /* a whole VMA, before anything is mapped */
	BUNSHIN_MOVE_RUN, /* onto a mapping, after all is mapped */
	BUNSHIN_MOVE_COPY,
};

struct bunshin_move {
	uint64_t from, to, len;
	uint64_t what;
};

/* Of a mapping's status: it is where it belongs already. See bunshin-family.c. */
#define VMA_BUNSHIN_MADE (1 << 26)

#endif
