// SPDX-License-Identifier: GPL-2.0-only
/* BUNSHIN_COW_RANGE: everything that can refuse comes first, then the sharing. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/mm.h>
#include <linux/oom.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>

#include "mapping.h"
#include "pages.h"
#include "range.h"
#include "source.h"
#include "symbols.h"
#include "uapi/bunshin_kmod.h"

static int bsh_refuse(struct bunshin_cow_range *range, int error,
		      enum bunshin_refusal why, u64 at)
{
	range->refusal = why;
	range->refused_at = at;
	return error;
}

static int bsh_range_valid(const struct bunshin_cow_range *range)
{
	if (range->flags & ~BUNSHIN_COW_DETACH)
		return -EINVAL;
	if (!range->length || !PAGE_ALIGNED(range->start | range->length))
		return -EINVAL;
	if (range->start + range->length < range->start ||
	    range->start + range->length > TASK_SIZE)
		return -EINVAL;
	return 0;
}

/* Refuses what lies in a part of one mapping; the mapping is write locked. */
static int bsh_part_check(struct bunshin_cow_range *range,
			  struct vm_area_struct *vma, unsigned long start,
			  unsigned long end)
{
	bool detach = (range->flags & BUNSHIN_COW_DETACH) && vma->vm_file;
	enum bunshin_refusal why;
	unsigned long at;
	int rc;

	why = bsh_mapping_refusal(vma);
	if (why)
		return bsh_refuse(range, -EOPNOTSUPP, why, start);
	if (start > vma->vm_start && bsh_pages_cut_huge(vma, start, &at))
		return bsh_refuse(range, -ERANGE, BUNSHIN_REFUSED_HUGE_PAGE, at);
	if (end < vma->vm_end && bsh_pages_cut_huge(vma, end, &at))
		return bsh_refuse(range, -ERANGE, BUNSHIN_REFUSED_HUGE_PAGE, at);
	rc = detach ? bsh_pages_detachable(vma, start, end, &at) : 0;
	if (rc == -ENXIO)
		return bsh_refuse(range, rc, BUNSHIN_REFUSED_FILE_PAGE, at);
	return rc;
}

static int bsh_range_check(struct bunshin_cow_range *range,
			   struct mm_struct *source, struct mm_struct *own)
{
	unsigned long at = range->start, end = range->start + range->length;
	struct vm_area_struct *vma;
	int rc;

	/* The OOM killer has been at it: pages may be gone. */
	if (check_stable_address_space(source))
		return -ESRCH;
	vma = find_vma(own, at);
	if (vma && vma->vm_start < end)
		return bsh_refuse(range, -EEXIST, BUNSHIN_REFUSED_OCCUPIED,
				  max_t(u64, vma->vm_start, at));
	while (at < end) {
		unsigned long part_end;

		vma = find_vma(source, at);
		if (!vma || vma->vm_start > at)
			return bsh_refuse(range, -EFAULT, BUNSHIN_REFUSED_HOLE, at);
		/* Until the mm is unlocked no fault changes the page tables. */
		vma_start_write(vma);
		part_end = min(end, vma->vm_end);
		rc = bsh_part_check(range, vma, at, part_end);
		if (rc < 0)
			return rc;
		at = part_end;
	}
	return 0;
}

static int bsh_range_map(const struct bunshin_cow_range *range,
			 struct mm_struct *source, struct mm_struct *own)
{
	bool detach = range->flags & BUNSHIN_COW_DETACH;
	unsigned long at = range->start, end = range->start + range->length;
	int rc = 0;

	while (at < end && !rc) {
		struct vm_area_struct *vma = find_vma(source, at);
		unsigned long part_end = min(end, vma->vm_end);

		rc = bsh_mapping_share(own, vma, at, part_end, detach);
		at = part_end;
	}
	/*
	 * Also after a failure: pages that were writable are not any more, and
	 * no processor may go on writing to them through what it remembers.
	 */
	bsh_call(flush_tlb_mm_range)(source, range->start, end, PAGE_SHIFT, false);
	if (rc < 0 && bsh_call(do_munmap)(own, range->start, range->length, NULL))
		pr_warn_ratelimited("process %d keeps a part of a range that failed\n",
				    current->pid);
	return rc;
}

int bsh_range_share(struct bunshin_cow_range *range)
{
	struct mm_struct *source, *own = current->mm;
	int rc;

	rc = bsh_range_valid(range);
	if (rc < 0)
		return rc;
	source = bsh_source_get(range->pidfd);
	if (IS_ERR(source))
		return PTR_ERR(source);
	rc = bsh_source_lock(source, own);
	if (rc < 0)
		goto put;
	rc = bsh_range_check(range, source, own);
	if (!rc)
		rc = bsh_range_map(range, source, own);
	bsh_source_unlock(source, own);
put:
	mmput(source);
	return rc;
}
