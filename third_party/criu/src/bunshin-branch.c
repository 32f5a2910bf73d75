// SPDX-License-Identifier: GPL-2.0-only
/*
 * The restore, in a fork of the pool. CRIU's runs untouched but for memory: what
 * a task's arena holds is inherited down the tree of tasks, each of which passes on only
 * what its own children need, and the restorer moves it into place.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bunshin-gzip.h"
#include "bunshin-moves.h"
#include "bunshin-msg.h"
#include "bunshin-pool-proto.h"
#include "bunshin-pool.h"
#include "bunshin-tar.h"
#include "cr_options.h"
#include "crtools.h"
#include "files.h"
#include "files-reg.h"
#include "image.h"
#include "kerndat.h"
#include "log.h"
#include "page.h"
#include "pstree.h"
#include "restorer.h"
#include "rst-malloc.h"
#include "rst_info.h"
#include "sched.h"
#include "servicefd.h"
#include "util.h"
#include "vma.h"
#include "xmalloc.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ull
#endif

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

static bool branching;
static const int *cgroup_fds;
static unsigned int n_cgroups;
static int cgroup_v2 = -1; /* a directory, where the root task is born */
static struct bunshin_move *moves;
static size_t n_moves, moves_room;
static int64_t tasks_ns; /* when the root task was about to be forked */

bool bunshin_branching(void)
{
	return branching;
}

bool bunshin_root_prepared(void)
{
	/* A file that was looked up before it lies in the upper directory would not be seen there. */
	if (branching)
		bunshin_copyup_wait();
	return branching;
}

static bool in_subtree(pid_t vpid_, const struct pstree_item *root)
{
	struct pstree_item *item;

	for_each_pstree_item(item) {
		if (vpid(item) != vpid_)
			continue;
		for (; item; item = item->parent)
			if (item == root)
				return true;
		return false;
	}
	return false;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int bunshin_before_fork(struct pstree_item *child)
{
	size_t i;

	if (!branching)
		return 0;
	if (!child->parent) {
		tasks_ns = now_ns();
		if (bunshin_filler_start())
			return -1;
	}
	for (i = 0; i < bunshin_n_tasks; i++) {
		struct bunshin_task *task = &bunshin_tasks[i];

		if (task->inherited)
			bunshin_task_advise(task, in_subtree(task->vpid, child) ? MADV_DOFORK : MADV_DONTFORK);
	}
	return 0;
}

/* The root task alone, so that nothing but the branch's own processes is ever seen in its cgroups. */
static int enter_cgroups(void)
{
	unsigned int i;

	for (i = cgroup_v2 < 0 ? 0 : 1; i < n_cgroups; i++) {
		if (write(cgroup_fds[i], "0", 1) != 1) {
			pr_perror("cannot enter a cgroup of the branch");
			return -1;
		}
	}
	if (unshare(CLONE_NEWCGROUP)) {
		pr_perror("cannot make a cgroup namespace");
		return -1;
	}
	return 0;
}

long bunshin_clone3(struct _clone_args *args, size_t size)
{
	struct {
		struct _clone_args args;
		uint64_t cgroup;
	} into = { .args = *args, .cgroup = cgroup_v2 };

	if (!branching || current || cgroup_v2 < 0)
		return syscall(__NR_clone3, args, size);
	into.args.flags |= CLONE_INTO_CGROUP;
	return syscall(__NR_clone3, &into, sizeof(into));
}

int bunshin_task_started(void)
{
	size_t i;

	if (!branching)
		return 0;
	/* Arenas outside of its subtree did not come along. */
	for (i = 0; i < bunshin_n_tasks; i++)
		if (bunshin_tasks[i].inherited && !in_subtree(bunshin_tasks[i].vpid, current))
			bunshin_tasks[i].inherited = false;
	if (current->parent)
		return 0;
	for (i = 0; i < bunshin_n_tasks; i++)
		bunshin_task_advise(&bunshin_tasks[i], MADV_DONTFORK);
	return enter_cgroups();
}

void bunshin_children_made(void)
{
	size_t i;

	if (!branching)
		return;
	for (i = 0; i < bunshin_n_tasks; i++) {
		struct bunshin_task *task = &bunshin_tasks[i];

		if (!task->inherited)
			continue;
		if (task->vpid == vpid(current)) {
			/* Or the branch's own fork() would leave it behind. */
			bunshin_task_advise(task, MADV_DOFORK);
			continue;
		}
		munmap(task->base, task->used);
		task->inherited = false;
	}
}

static int add_move(uint64_t what, const struct bunshin_seg *seg)
{
	if (n_moves == moves_room) {
		size_t room = moves_room ? 2 * moves_room : 1024;
		struct bunshin_move *v = xrealloc(moves, room * sizeof(*v));

		if (!v)
			return -1;
		moves = v;
		moves_room = room;
	}
	moves[n_moves++] = (struct bunshin_move){
		.from = (uint64_t)seg->addr, .to = seg->start, .len = seg->end - seg->start, .what = what
	};
	return 0;
}

/* Relocations mostly fill their mapping. A file without a name is opened all the same: that is what makes it go again. */
static bool is_all_dirty(const struct bunshin_seg *seg, const struct vma_area *vma)
{
	if (seg->kind != BUNSHIN_RUN || seg->start != vma->e->start || seg->end != vma->e->end ||
	    (vma->e->flags & MAP_LOCKED))
		return false;
	return vma->vmfd && vma->vmfd->ops->type == FD_TYPES__REG &&
	       !container_of(vma->vmfd, struct reg_file_info, d)->remap;
}

static int map_vma(const struct bunshin_task *task, struct vma_area *vma)
{
	const struct bunshin_segs *segs = &task->segs;
	size_t i = bunshin_segs_find(segs, vma->e->start);

	if (i == segs->n || segs->v[i].start >= vma->e->end) {
		/* No pages: it need not be made writable for a while. */
		vma->e->status |= VMA_NO_PROT_WRITE;
		return 0;
	}
	if (is_all_dirty(&segs->v[i], vma)) {
		/* Nothing of the file would show. */
		vma->vm_open = NULL;
		vma->e->fd = -1;
		vma->e->status |= VMA_PREMMAPED;
		vma->premmaped_addr = vma->e->start;
		return add_move(BUNSHIN_MOVE_VMA, &segs->v[i]);
	}
	if (segs->v[i].kind == BUNSHIN_WHOLE) {
		if (segs->v[i].start != vma->e->start || segs->v[i].end != vma->e->end) {
			pr_err("the pool has %#lx-%#lx where the image has %#lx-%#lx\n", segs->v[i].start, segs->v[i].end,
			       (unsigned long)vma->e->start, (unsigned long)vma->e->end);
			return -1;
		}
		/* A lock is not inherited; it moves along. */
		if ((vma->e->flags & MAP_LOCKED) && mlock(segs->v[i].addr, vma->e->end - vma->e->start)) {
			pr_perror("cannot lock %#lx-%#lx", (unsigned long)vma->e->start, (unsigned long)vma->e->end);
			return -1;
		}
		vma->e->status |= VMA_PREMMAPED;
		vma->premmaped_addr = vma->e->start;
		return add_move(BUNSHIN_MOVE_VMA, &segs->v[i]);
	}
	for (; i < segs->n && segs->v[i].start < vma->e->end; i++)
		if (add_move(segs->v[i].kind == BUNSHIN_RUN ? BUNSHIN_MOVE_RUN : BUNSHIN_MOVE_COPY, &segs->v[i]))
			return -1;
	return 0;
}

int bunshin_map_task(struct pstree_item *item)
{
	struct vm_area_list *vmas = &rsti(item)->vmas;
	struct bunshin_task *task;
	struct vma_area *vma;

	n_moves = 0;
	if (!vmas->nr)
		return 0;
	task = bunshin_task_find(vpid(item));
	if (!task || !task->inherited) {
		pr_err("the pool has no memory for task %d\n", vpid(item));
		return -1;
	}
	if (kdat.stack_guard_gap_hidden) {
		pr_err("this kernel hides the guard page of stacks\n");
		return -1;
	}
	list_for_each_entry(vma, &vmas->h, list) {
		if (vma_area_is(vma, VMA_AREA_GUARD) || !vma_area_is_private(vma, kdat.task_size))
			continue;
		if (map_vma(task, vma))
			return -1;
	}
	if (bunshin_share_mappings(task, item))
		return -1;
	rsti(item)->premmapped_addr = task->base;
	rsti(item)->premmapped_len = task->used;
	return 0;
}

/* Whether we have nothing there. */
static bool is_free(unsigned long at, unsigned long len)
{
	void *want = (void *)at;
	void *got = mmap(want, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != MAP_FAILED)
		munmap(got, len);
	return got == want;
}

void *bunshin_find_hole(struct vm_area_list *vmas, unsigned long min, unsigned long len)
{
	unsigned long at = min;
	struct vma_area *vma;

	list_for_each_entry(vma, &vmas->h, list) {
		if (vma_area_is(vma, VMA_AREA_GUARD))
			continue;
		if (at + len <= vma->e->start && is_free(at, len))
			return (void *)at;
		at = max_t(unsigned long, at, vma->e->end);
	}
	return at + len <= kdat.task_size && is_free(at, len) ? (void *)at : MAP_FAILED;
}

int bunshin_prepare_moves(struct task_restore_args *args)
{
	struct bunshin_move *to;

	args->bunshin_moves = (void *)rst_mem_align_cpos(RM_PRIVATE);
	args->bunshin_n_moves = 0;
	args->bunshin_traps = bunshin_threads_trap();
	if (!branching || !n_moves)
		return 0;
	to = rst_mem_alloc(n_moves * sizeof(*to), RM_PRIVATE);
	if (!to)
		return -1;
	memcpy(to, moves, n_moves * sizeof(*to));
	args->bunshin_n_moves = n_moves;
	return 0;
}

/* As a plain restore does, for what a plain dump wrote. */
static int run_tar(int archive_fd, const char *mountpoint)
{
	return cr_system(archive_fd, -1, -1, "tar",
			 (char *[]){ "tar", "--extract", "--gzip", "--no-unquote", "--no-wildcards", "--directory",
				     (char *)mountpoint, NULL },
			 0);
}

int bunshin_restore_tmpfs(int archive_fd, const char *mountpoint)
{
	int dir, ret;

	if (!bunshin_gzip_is_ours(archive_fd))
		return run_tar(archive_fd, mountpoint);
	dir = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) {
		pr_perror("cannot open %s", mountpoint);
		return -1;
	}
	ret = bunshin_tar_read(archive_fd, dir);
	close(dir);
	return ret;
}

/* ---- the process that runs the restore ---- */

static int start_log(const struct bsh_pool_branch *req)
{
	opts.output = xstrdup(req->log[0] ? req->log : "/dev/null");
	log_fini();
	opts.log_level = req->log_level;
	log_set_loglevel(req->log_level);
	return log_keep_err() || log_init(opts.output) ? -1 : 0;
}

static int run_restore(const struct bsh_pool_branch *req, const int *fds)
{
	const int *view = req->view ? fds + 3 + req->n_cgroups : NULL;

	if (start_log(req))
		return -1;
	branching = true;
	/* Only the branch's own tasks are to inherit memory. */
	bunshin_tasks_advise(MADV_DONTFORK);
	util_init();
	if (setns(fds[1], CLONE_NEWNS)) {
		pr_perror("cannot enter the branch's mount namespace");
		return -1;
	}
	bunshin_copyup_start(req->root, view ? view[0] : -1, view ? view[1] : -1);
	/* Statistics go to where it runs. */
	if (fchdir(get_service_fd(IMG_FD_OFF))) {
		pr_perror("cannot enter the images directory");
		return -1;
	}
	cgroup_fds = fds + 3;
	n_cgroups = req->n_cgroups;
	cgroup_v2 = req->cgroup_v2 ? fds[3] : -1;
	opts.mode = CR_RESTORE;
	opts.root = xstrdup(req->root);
	opts.restore_detach = 1;
	opts.restore_sibling = 1;
	if (!opts.root || inherit_fd_add(fds[2], (char *)req->net_key))
		return -1;
	return cr_restore_tasks();
}

static void note_phases(struct bsh_pool_answer *answer, int64_t start_ns)
{
	answer->phases[0] = (struct bsh_pool_phase){ "restore: images", start_ns, tasks_ns - start_ns };
	answer->phases[1] = (struct bsh_pool_phase){ "restore: tasks", tasks_ns, now_ns() - tasks_ns };
	answer->n_phases = 2;
}

void bunshin_branch_run(const struct bsh_pool_branch *req, const int *fds)
{
	struct bsh_pool_answer answer = {
		.header = { .size = sizeof(answer), .type = BSH_POOL_OK, .version = BSH_POOL_VERSION, .seq = req->header.seq },
	};
	int64_t start_ns = now_ns();
	sigset_t none;
	int ret;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	ret = run_restore(req, fds);
	bunshin_copyup_wait();
	if (!ret) {
		answer.pid = root_item->pid->real;
		note_phases(&answer, start_ns);
	} else {
		answer.header.type = BSH_POOL_FAILED;
		answer.error = EIO;
		bunshin_error_text(log_first_err() ?: "the restore failed", answer.text, sizeof(answer.text));
	}
	_exit(bunshin_msg_send(fds[0], &answer, sizeof(answer), NULL, 0) ? 2 : 0);
}
