/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_PKEYS_H
#define BUNSHIN_PKEYS_H
/*
 * Memory protection keys (pkeys(7)): which of them a process has allocated, and which one guards each mapping. What a
 * thread may do with each is a register of its own, which is recorded with the others.
 */
#include <stdbool.h>

#include "images/vma.pb-c.h"

/* A line "ProtectionKey: N" of smaps. */
void bunshin_pkey_parse(const char *line, VmaEntry *vma);
/* Whether processor and kernel have them. */
bool bunshin_has_pkeys(void);

#endif
