// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tasks that came of a fork() have the same files at the same addresses: Chromium's zygote and its children, PostgreSQL
 * and its helpers. Their parent makes those mappings before it forks them, each where it belongs, if nothing of CRIU is
 * there; they inherit them, and neither open nor map the files again. The restorer leaves them where they are.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "bunshin-moves.h"
#include "bunshin-pool.h"
#include "files.h"
#include "files-reg.h"
#include "image.h"
#include "log.h"
#include "pstree.h"
#include "rst_info.h"
#include "util.h"
#include "vma.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

/* Room for our own stack to grow, and the gap that the kernel keeps below it. */
#define STACK_ROOM (16ul << 20)

static bool is_kin(struct pstree_item *a, struct pstree_item *b)
{
	return rsti(a)->vmas.nr && rsti(b)->vmas.nr && rsti(a)->mm->exe_file_id == rsti(b)->mm->exe_file_id;
}

static bool is_same(const VmaEntry *a, const VmaEntry *b)
{
	return a->start == b->start && a->end == b->end && a->pgoff == b->pgoff && a->shmid == b->shmid &&
	       a->prot == b->prot && a->flags == b->flags && a->fdflags == b->fdflags;
}

/* Pages may be moved onto it, but not written into it: it may be read-only from the start. */
static bool is_fit(const struct bunshin_task *task, const struct vma_area *vma)
{
	const struct bunshin_segs *segs = &task->segs;
	size_t i;

	if (!vma_area_is(vma, VMA_AREA_REGULAR | VMA_FILE_PRIVATE) || !vma->vm_open ||
	    (vma->e->status & (VMA_AREA_MEMFD | VMA_AREA_AIORING | VMA_EXT_PLUGIN)) ||
	    (vma->e->flags & (MAP_LOCKED | MAP_GROWSDOWN | MAP_HUGETLB)))
		return false;
	/* A file without a name is opened by each: that is what makes it go again. */
	if (!vma->vmfd || vma->vmfd->ops->type != FD_TYPES__REG ||
	    container_of(vma->vmfd, struct reg_file_info, d)->remap)
		return false;
	for (i = bunshin_segs_find(segs, vma->e->start); i < segs->n && segs->v[i].start < vma->e->end; i++)
		if (segs->v[i].kind != BUNSHIN_RUN)
			return false;
	return true;
}

static void note_made(struct vma_area *vma)
{
	vma->vm_open = NULL;
	vma->e->fd = -1;
	vma->e->status |= VMA_PREMMAPED | VMA_BUNSHIN_MADE;
	vma->premmaped_addr = vma->e->start;
}

static bool is_below_stack(const VmaEntry *vma)
{
	unsigned long here = (unsigned long)__builtin_frame_address(0);

	return vma->start < here && vma->end > here - STACK_ROOM;
}

/* Where that is not possible, the restorer makes it, for each. */
static int make(struct pstree_item *item, struct vma_area *vma)
{
	void *at = (void *)(unsigned long)vma->e->start, *made;

	if (vma_area_is(vma, VMA_BUNSHIN_MADE) || is_below_stack(vma->e))
		return 0;
	if (vma->vm_open(vpid(item), vma)) {
		pr_err("cannot open the file of %#lx\n", (unsigned long)at);
		return -1;
	}
	made = mmap(at, vma_entry_len(vma->e), vma->e->prot, vma->e->flags | MAP_FIXED_NOREPLACE, vma->e->fd,
		    vma->e->pgoff);
	if (made == at)
		note_made(vma);
	else if (made != MAP_FAILED)
		munmap(made, vma_entry_len(vma->e));
	return 0;
}

/* The next pair of equal ones from there on; false: there is none. */
static bool next_pair(struct vm_area_list *a_list, struct vma_area **a, struct vm_area_list *b_list,
		      struct vma_area **b)
{
	while (&(*a)->list != &a_list->h && &(*b)->list != &b_list->h) {
		if (is_same((*a)->e, (*b)->e))
			return true;
		if ((*a)->e->start <= (*b)->e->start)
			*a = vma_next(*a);
		else
			*b = vma_next(*b);
	}
	return false;
}

static int share(const struct bunshin_task *task, struct pstree_item *item, struct pstree_item *kin, bool have)
{
	struct vm_area_list *own = &rsti(item)->vmas, *other = &rsti(kin)->vmas;
	struct vma_area *a, *b;

	if (!is_kin(item, kin))
		return 0;
	a = list_first_entry(&own->h, struct vma_area, list);
	b = list_first_entry(&other->h, struct vma_area, list);
	for (; next_pair(own, &a, other, &b); a = vma_next(a), b = vma_next(b)) {
		if (!is_fit(task, a))
			continue;
		if (!have) {
			if (make(item, a))
				return -1;
		} else if (vma_area_is(b, VMA_BUNSHIN_MADE)) {
			note_made(a);
		}
	}
	return 0;
}

int bunshin_share_mappings(const struct bunshin_task *task, struct pstree_item *item)
{
	struct pstree_item *child;
	int ret = 0;

	if (item->parent)
		share(task, item, item->parent, true);
	filemap_ctx_init(true);
	list_for_each_entry(child, &item->children, sibling)
		if ((ret = share(task, item, child, false)))
			break;
	filemap_ctx_fini();
	return ret;
}
