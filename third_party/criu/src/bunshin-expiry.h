/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_EXPIRY_H
#define BUNSHIN_EXPIRY_H
/*
 * Timers that run out while their process is dumped. What is left of each is read first, pending signals after
 * that: the signal of such a timer is recorded, and the timer as what it is by then.
 */
#include "pstree.h"

/* Just before the timers of a process are read. */
void bunshin_timers_begin(void);
/* Its signals are recorded: timers whose signal came meanwhile do not give it a second time. */
void bunshin_timers_expired(struct pstree_item *item);

#endif
