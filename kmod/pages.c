// SPDX-License-Identifier: GPL-2.0-only
/* Questions to the page tables of a mapping whose mm is write locked. */
#include <linux/mm.h>
#include <linux/pagewalk.h>
#include <linux/page-flags.h>

#include "compat.h"
#include "pages.h"
#include "symbols.h"

static bool bsh_pmd_huge(pmd_t pmd)
{
	/* Not present and yet something: a huge page on its way elsewhere. */
	return pmd_trans_huge(pmd) || (!pmd_none(pmd) && !pmd_present(pmd));
}

static int bsh_find_huge(pmd_t *pmd, unsigned long addr, unsigned long next,
			 struct mm_walk *walk)
{
	return bsh_pmd_huge(READ_ONCE(*pmd)) ? 1 : 0;
}

static const struct mm_walk_ops bsh_huge_ops = {
	.pmd_entry = bsh_find_huge,
	BSH_WALK_LOCKED
};

bool bsh_pages_cut_huge(struct vm_area_struct *vma, unsigned long address,
			unsigned long *ret_at)
{
	if (IS_ALIGNED(address, PMD_SIZE))
		return false;
	if (bsh_call(walk_page_range)(vma->vm_mm, address, address + PAGE_SIZE,
				      &bsh_huge_ops, NULL) != 1)
		return false;
	*ret_at = ALIGN_DOWN(address, PMD_SIZE);
	return true;
}

struct bsh_file_page {
	unsigned long at;
};

static int bsh_find_file_pmd(pmd_t *pmd, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	struct bsh_file_page *found = walk->private;

	if (!bsh_pmd_huge(READ_ONCE(*pmd)))
		return 0;
	found->at = addr;
	return -ENXIO;
}

static int bsh_find_file_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	struct bsh_file_page *found = walk->private;
	pte_t pte = ptep_get(ptep);

	if (pte_none(pte))
		return 0;
	if (!pte_present(pte))
		return bsh_pte_migrates(pte) ? -EAGAIN : 0;
	if (!pte_special(pte) && PageAnon(pfn_to_page(pte_pfn(pte))))
		return 0;
	found->at = addr;
	return -ENXIO;
}

static const struct mm_walk_ops bsh_file_ops = {
	.pmd_entry = bsh_find_file_pmd,
	.pte_entry = bsh_find_file_pte,
	BSH_WALK_LOCKED
};

int bsh_pages_detachable(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end, unsigned long *ret_at)
{
	struct bsh_file_page found = {};
	int rc;

	rc = bsh_call(walk_page_range)(vma->vm_mm, start, end, &bsh_file_ops,
				       &found);
	if (rc == -ENXIO)
		*ret_at = found.at;
	return rc;
}
