/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_MAPPING_H
#define BSH_MAPPING_H

#include <linux/mm_types.h>

#include "uapi/bunshin_kmod.h"

/* Why this kind of mapping cannot be shared copy-on-write; 0 if it can. */
enum bunshin_refusal bsh_mapping_refusal(const struct vm_area_struct *vma);

/*
 * Maps [start, end) of vma at the same place in own, copy-on-write; detached,
 * as anonymous memory. Both mms are write locked, and vma. After a failure a
 * part may be mapped, and the source's TLB must be flushed in any case.
 */
int bsh_mapping_share(struct mm_struct *own, struct vm_area_struct *vma,
		      unsigned long start, unsigned long end, bool detach);

#endif
