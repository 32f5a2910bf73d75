/* SPDX-License-Identifier: GPL-2.0-only */
/* Everything that depends on the kernel's version, and nothing else. */
#ifndef BSH_COMPAT_H
#define BSH_COMPAT_H

#include <linux/mm.h>
#include <linux/pagewalk.h>
#include <linux/swap.h>
#include <linux/version.h>

#ifndef CONFIG_X86_64
#error "bunshin: only x86-64 is supported"
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "bunshin: needs Linux 6.1 or newer"
#endif
#ifndef CONFIG_KPROBES
#error "bunshin: needs a kernel with CONFIG_KPROBES"
#endif

/* The newest series the tests have run on. */
#define BSH_TESTED "7.2"

static inline bool bsh_kernel_tested(void)
{
	return LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0);
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_init(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags = flags;
}
#endif

/* Mappings have locks of their own since 6.4; before, the mm's lock is all. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
static inline void vma_start_write(struct vm_area_struct *vma)
{
}
#endif

/* A page walk says since 6.5 how the mappings are locked. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
#define BSH_WALK_LOCKED
#else
#define BSH_WALK_LOCKED .walk_lock = PGWALK_WRLOCK_VERIFY,
#endif

/*
 * Where a mapping begins in its anon_vma: vm_pgoff, until private file mappings
 * got an offset of their own for that in 7.3.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0)
static inline pgoff_t bsh_anon_pgoff(const struct vm_area_struct *vma)
{
	return vma->vm_pgoff;
}

static inline void bsh_anon_pgoff_set(struct vm_area_struct *vma, pgoff_t pgoff)
{
}
#else
static inline pgoff_t bsh_anon_pgoff(const struct vm_area_struct *vma)
{
	return vma_start_anon_pgoff(vma);
}

static inline void bsh_anon_pgoff_set(struct vm_area_struct *vma, pgoff_t pgoff)
{
	vma->__vm_anon_pgoff_lo = lower_32_bits(pgoff);
	vma->__vm_anon_pgoff_hi = upper_32_bits(pgoff);
}
#endif

/* Kinds of memory that older kernels do not have. */
#ifndef VM_SHADOW_STACK
#define VM_SHADOW_STACK VM_NONE
#endif
#ifndef VM_DROPPABLE
#define VM_DROPPABLE VM_NONE
#endif
#ifndef VM_SEALED
#define VM_SEALED VM_NONE
#endif

/* True while the page behind a non-present entry is on its way elsewhere. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
#include <linux/swapops.h>
static inline bool bsh_pte_migrates(pte_t pte)
{
	return is_migration_entry(pte_to_swp_entry(pte));
}
#else
#include <linux/leafops.h>
static inline bool bsh_pte_migrates(pte_t pte)
{
	return softleaf_is_migration(softleaf_from_pte(pte));
}
#endif

/* Hidden from modules; the same from 6.1 to 7.3. */
void flush_tlb_mm_range(struct mm_struct *mm, unsigned long start,
			unsigned long end, unsigned int stride_shift,
			bool freed_tables);

/* Since 6.19 only mm/ itself sees these; their types were looked up in 7.2. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
int anon_vma_fork(struct vm_area_struct *vma, struct vm_area_struct *pvma);
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0)
int insert_vm_struct(struct mm_struct *mm, struct vm_area_struct *vma);
#endif

#endif
