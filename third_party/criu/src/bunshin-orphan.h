/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_ORPHAN_H
#define BUNSHIN_ORPHAN_H
/* No child outlives whoever it works for: it would hold descriptors, and others would wait for their ends. */
#include <stdbool.h>
#include <sys/types.h>

/* In a child, first thing: it is killed when @parent ends, and ends if that has happened already. */
void bunshin_end_with(pid_t parent);
/* From now on, or no longer: children made by fork() do so by themselves. */
void bunshin_bind_children(bool bind);

#endif
