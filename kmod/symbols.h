/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_SYMBOLS_H
#define BSH_SYMBOLS_H

#include <linux/mm.h>
#include <linux/pagewalk.h>
#include <linux/pid.h>
#include <linux/rmap.h>
#include <linux/static_call.h>

#include "compat.h"

/*
 * What the kernel does not export. Each is called through a static call: a
 * direct jump, which indirect branch tracking does not mind, of the type that
 * the kernel's own headers declare (compat.h where they hide it).
 */
#define BSH_SYMBOLS(X)                                                         \
	X(anon_vma_fork)                                                       \
	X(copy_page_range)                                                     \
	X(do_munmap)                                                           \
	X(flush_tlb_mm_range)                                                  \
	X(insert_vm_struct)                                                    \
	X(pidfd_get_task)                                                      \
	X(vm_area_dup)                                                         \
	X(vm_area_free)                                                        \
	X(vm_stat_account)                                                     \
	X(walk_page_range)

#define BSH_DECLARE(name) DECLARE_STATIC_CALL(bsh_##name, name);
BSH_SYMBOLS(BSH_DECLARE)
#undef BSH_DECLARE

/* The unexported function of that name. */
#define bsh_call(name) static_call(bsh_##name)

/* Finds them all; -ENOENT after naming in the log each one this kernel lacks. */
int bsh_symbols_init(void);

#endif
