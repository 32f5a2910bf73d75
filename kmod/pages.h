/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_PAGES_H
#define BSH_PAGES_H

#include <linux/mm_types.h>

/* True if a huge page lies across address; *ret_at is then where it begins. */
bool bsh_pages_cut_huge(struct vm_area_struct *vma, unsigned long address,
			unsigned long *ret_at);

/*
 * 0 if no page of the mapping's file is present in [start, end); -ENXIO and
 * where, if one is; -EAGAIN if that is open because a page is being moved.
 */
int bsh_pages_detachable(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end, unsigned long *ret_at);

#endif
