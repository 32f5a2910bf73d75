/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_RESTORER_H
#define BUNSHIN_RESTORER_H
/* Included by the restorer blob alone. */
#include "bunshin-moves.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static bool bunshin_traps;

/* See bunshin-seize.c. */
static void bunshin_trap(void)
{
#ifdef __x86_64__
	k_rtsigset_t trap;

	if (!bunshin_traps)
		return;
	/* Blocked, it would lose its handler. */
	ksigemptyset(&trap);
	ksigaddset(&trap, SIGTRAP);
	sys_sigprocmask(SIG_UNBLOCK, &trap, NULL, sizeof(trap));
	asm volatile("int3");
#endif
}

/* What it leaves behind goes with the rest of the arena, at a stroke: unmapping each piece would cut that up first. */
static bool bunshin_move_pages(const struct bunshin_move *m)
{
	unsigned long flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	return sys_mremap(m->from, m->len, m->len, flags | MREMAP_DONTUNMAP, m->to) == m->to ||
	       sys_mremap(m->from, m->len, m->len, flags, m->to) == m->to;
}

struct bunshin_range {
	unsigned long start, end;
};

static bool bunshin_unmap(unsigned long start, unsigned long end)
{
	long ret = start < end ? sys_munmap((void *)start, end - start) : 0;

	if (ret)
		pr_err("Can't unmap %lx-%lx: %ld\n", start, end, ret);
	return !ret;
}

/* All but the restorer, the arena, and the mappings that are where they belong; as unmap_old_vmas() where there are none. */
static bool bunshin_unmap_old(struct task_restore_args *args)
{
	const unsigned long arena = (unsigned long)args->premmapped_addr, boot = (unsigned long)args->bootstrap_start;
	struct bunshin_range other[] = {
		{ arena, arena + args->premmapped_len },
		{ boot, boot + args->bootstrap_len },
		{ args->task_size, args->task_size },
	};
	unsigned long from = 0;
	unsigned int i = 0, k = 0;

	if (arena > boot) {
		const struct bunshin_range first = other[1];

		other[1] = other[0];
		other[0] = first;
	}
	while (k < 3) {
		const VmaEntry *vma = i < args->vmas_n ? &args->vmas[i] : NULL;
		struct bunshin_range keep = other[k];

		if (vma && !vma_entry_is(vma, VMA_BUNSHIN_MADE)) {
			i++;
			continue;
		}
		if (vma && vma->start < keep.start) {
			keep = (struct bunshin_range){ vma->start, vma->end };
			i++;
		} else {
			k++;
		}
		if (!bunshin_unmap(from, keep.start))
			return false;
		from = keep.end;
	}
	return true;
}

/* How many moves from the first on are neighbours both here and there. */
static unsigned int bunshin_neighbours(const struct bunshin_move *m, unsigned int n)
{
	unsigned int i = 1;

	while (i < n && m[i].what == m->what && m[i].from == m[i - 1].from + m[i - 1].len &&
	       m[i].to == m[i - 1].to + m[i - 1].len)
		i++;
	return i;
}

/*
 * A library's relocations, its data and what follows it are three mappings of the task, but one here. The kernel refuses,
 * with nothing moved, when they are several (before 6.17), or when it knows no MREMAP_DONTUNMAP.
 */
static bool bunshin_move_together(const struct bunshin_move *m, unsigned int n)
{
	unsigned long len = m[n - 1].from + m[n - 1].len - m->from, ret;
	unsigned int i;

	if (n > 1) {
		ret = sys_mremap(m->from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, m->to);
		if (ret != (unsigned long)-EFAULT && ret != (unsigned long)-EINVAL)
			return ret == m->to;
	}
	for (i = 0; i < n; i++)
		if (!bunshin_move_pages(&m[i]))
			return false;
	return true;
}

static int bunshin_move(struct task_restore_args *args, bool mapped)
{
	unsigned int i, n;

	for (i = 0; i < args->bunshin_n_moves; i += n) {
		struct bunshin_move *m = &args->bunshin_moves[i];

		n = bunshin_neighbours(m, args->bunshin_n_moves - i);
		if (mapped != (m->what != BUNSHIN_MOVE_VMA))
			continue;
		if (m->what == BUNSHIN_MOVE_COPY) {
			memcpy((void *)(unsigned long)m->to, (void *)(unsigned long)m->from,
			       m[n - 1].from + m[n - 1].len - m->from);
			continue;
		}
		if (!bunshin_move_together(m, n)) {
			pr_err("Can't move %lx from the pool to %lx\n", (unsigned long)m->from, (unsigned long)m->to);
			return -1;
		}
	}
	/* The rest of the arena: nothing of it is the task's. */
	if (mapped && args->bunshin_n_moves)
		return sys_munmap((void *)args->premmapped_addr, args->premmapped_len);
	return 0;
}

/* What none of a task's threads may gain is given up before they are made; what one alone may not, by that later on. */
static void bunshin_drop_for_all(struct task_restore_args *args)
{
	const struct thread_creds_args *first = args->t->creds_args;
	unsigned int keep[CR_CAP_SIZE], i;
	int t;

	for (i = 0; i < CR_CAP_SIZE; i++)
		keep[i] = first->cap_bnd[i];
	for (t = 0; t < args->nr_threads; t++)
		for (i = 0; i < CR_CAP_SIZE; i++)
			keep[i] |= args->thread_args[t].creds_args->cap_bnd[i];
	for (i = 0; i <= first->cap_last_cap; i++)
		if (!(keep[i / 32] & 1u << i % 32))
			sys_prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
}

/* Once all is mapped. Mappings may have a key that has been freed meanwhile. */
static int bunshin_guard(struct task_restore_args *args)
{
	unsigned int wanted = args->mm.bunshin_pkeys, have = 1, i;
	long key = 0;

	for (i = 0; i < args->vmas_n; i++)
		wanted |= 1u << args->vmas[i].bunshin_pkey;
	wanted &= ~1u;
	while (wanted & ~have) {
		key = sys_pkey_alloc(0, 0);
		if (key < 0) {
			pr_err("Can't allocate protection keys %x: %ld\n", wanted & ~have, key);
			return -1;
		}
		have |= 1u << key;
	}
	for (i = 0; i < args->vmas_n; i++) {
		VmaEntry *vma = &args->vmas[i];

		if (vma->bunshin_pkey &&
		    sys_pkey_mprotect(vma->start, vma->end - vma->start, vma->prot, vma->bunshin_pkey)) {
			pr_err("Can't give protection key %u to %lx\n", vma->bunshin_pkey, (unsigned long)vma->start);
			return -1;
		}
	}
	for (i = 1; i < 32; i++)
		if (have & ~args->mm.bunshin_pkeys & 1u << i)
			sys_pkey_free(i);
	return 0;
}

#endif
