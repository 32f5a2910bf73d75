// SPDX-License-Identifier: GPL-2.0-only
/* One mapping of the source, and its twin in the caller. */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pkeys.h>

#include "mapping.h"
#include "symbols.h"

#define BSH_WATCHED (VM_UFFD_MISSING | VM_UFFD_WP | VM_UFFD_MINOR)

/*
 * What concerns the source alone. WIPEONFORK and DONTCOPY would take the
 * memory away from the processes that the caller forks.
 */
#define BSH_LEFT_BEHIND                                                        \
	(VM_LOCKED | VM_LOCKONFAULT | VM_WIPEONFORK | VM_DONTCOPY |            \
	 VM_MERGEABLE | VM_SEALED)

enum bunshin_refusal bsh_mapping_refusal(const struct vm_area_struct *vma)
{
	vm_flags_t flags = vma->vm_flags;

	if (flags & VM_HUGETLB)
		return BUNSHIN_REFUSED_HUGETLB;
	if ((flags & VM_SPECIAL) || vma_is_dax(vma))
		return BUNSHIN_REFUSED_DEVICE;
	if (flags & (VM_SHARED | VM_MAYSHARE))
		return BUNSHIN_REFUSED_SHARED;
	if (flags & BSH_WATCHED)
		return BUNSHIN_REFUSED_UFFD;
	if (vma_pkey((struct vm_area_struct *)vma))
		return BUNSHIN_REFUSED_PKEY;
	if (flags & (VM_SHADOW_STACK | VM_DROPPABLE))
		return BUNSHIN_REFUSED_SPECIAL;
	return BUNSHIN_REFUSED_NOTHING;
}

/* A copy of vma cut to [start, end), not yet in any mm; NULL without memory. */
static struct vm_area_struct *bsh_twin_new(struct mm_struct *own,
					   struct vm_area_struct *vma,
					   unsigned long start,
					   unsigned long end, bool detach)
{
	struct vm_area_struct *twin = bsh_call(vm_area_dup)(vma);
	pgoff_t skipped = (start - vma->vm_start) >> PAGE_SHIFT;

	if (!twin)
		return NULL;
	twin->vm_mm = own;
	twin->vm_start = start;
	twin->vm_end = end;
	twin->vm_pgoff += skipped;
	bsh_anon_pgoff_set(twin, bsh_anon_pgoff(vma) + skipped);
	vm_flags_init(twin, vma->vm_flags & ~BSH_LEFT_BEHIND);
	/* Still the source's: anon_vma_fork() gives the twin its own. */
	twin->anon_vma = NULL;
#ifdef CONFIG_NUMA
	twin->vm_policy = NULL;
#endif
	if (detach) {
		twin->vm_file = NULL;
		twin->vm_ops = NULL;
		twin->vm_private_data = NULL;
		twin->vm_pgoff = bsh_anon_pgoff(twin);
	} else if (twin->vm_file) {
		get_file(twin->vm_file);
	}
	return twin;
}

/* Hands the twin over to own; from here on unmapping is what frees it. */
static int bsh_twin_insert(struct mm_struct *own, struct vm_area_struct *twin)
{
	pgoff_t pgoff = twin->vm_pgoff, anon_pgoff = bsh_anon_pgoff(twin);
	int rc;

	rc = bsh_call(insert_vm_struct)(own, twin);
	if (rc < 0) {
		if (twin->vm_file)
			fput(twin->vm_file);
		bsh_call(vm_area_free)(twin);
		return rc;
	}
	/*
	 * Anonymous memory gets its offset from its address there, but the
	 * pages are found by the offset they had when they were first written,
	 * which differs after an mremap().
	 */
	twin->vm_pgoff = pgoff;
	bsh_anon_pgoff_set(twin, anon_pgoff);
	bsh_call(vm_stat_account)(own, twin->vm_flags, vma_pages(twin));
	if (twin->vm_ops && twin->vm_ops->open)
		twin->vm_ops->open(twin);
	return 0;
}

int bsh_mapping_share(struct mm_struct *own, struct vm_area_struct *vma,
		      unsigned long start, unsigned long end, bool detach)
{
	struct vm_area_struct *twin;
	int rc;

	twin = bsh_twin_new(own, vma, start, end, detach && vma->vm_file);
	if (!twin)
		return -ENOMEM;
	rc = bsh_twin_insert(own, twin);
	if (rc < 0)
		return rc;
	rc = bsh_call(anon_vma_fork)(twin, vma);
	if (rc < 0)
		return rc;

	/* The copy goes over the whole of the mapping it is given: cut that too. */
	struct vm_area_struct part = *vma;

	part.vm_start = start;
	part.vm_end = end;
	part.vm_pgoff += (start - vma->vm_start) >> PAGE_SHIFT;
	return bsh_call(copy_page_range)(twin, &part);
}
