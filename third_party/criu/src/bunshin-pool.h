/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_POOL_H
#define BUNSHIN_POOL_H
/*
 * The page pool: a process that holds the private memory of a snapshot, for
 * its branches to inherit by fork().
 *
 *   bunshin-pool.c    the process and its control socket
 *   bunshin-arena.c   where the memory lies: tasks, segments
 *   bunshin-scan.c    which pages a process has
 *   bunshin-smaps.c   mappings, learnt before the source is frozen
 *   bunshin-scout.c   looks at frozen tasks ahead of the dump
 *   bunshin-fill.c    bringing the arenas up to a frozen source
 *   bunshin-sealed.c  mappings that need not be looked through
 *   bunshin-populate.c makes pages present, and huge
 *   bunshin-frames.c  which physical pages these are
 *   bunshin-watch.c   which pages a running source writes to
 *   bunshin-copy.c    the threads that copy
 *   bunshin-copyup.c  files that a branch will write to, copied up beside the restore
 *   bunshin-kmod.c    sharing instead of copying, where the kernel module is loaded
 *   bunshin-record.c  the dump, in a child of the pool, and what it tells the pool
 *   bunshin-later.c   images that are written when the source runs again
 *   bunshin-shm.c     shared memory
 *   bunshin-filler.c  the thread that fills a branch's
 *   bunshin-branch.c  the restore, in a child of the pool
 *   bunshin-family.c  mappings of files that a task and its children have in common
 *   bunshin-rest.c    waits until TCP connections are at rest
 *   bunshin-seize.c   its end, when all threads are traced
 *   bunshin-hold.c    holds packets back until all connections are there
 *   bunshin-durable.c the pool as a directory of images, and back
 *
 * Functions return 0 or -1 and have logged why, as CRIU's do.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pstree_item;
struct vm_area_list;
struct vma_area;
struct cr_img;
struct inet_diag_msg;
struct libsoccr_sk;
struct libsoccr_sk_data;
struct nl_sock;
struct task_restore_args;
struct _clone_args;

/* ---- hooks: called from CRIU, no-ops outside of a pool ---- */

/* Runs `criu bunshin-pool FD` when that is what was asked for; else returns false. */
bool bunshin_pool_main(int argc, char **argv, int *ret_exit);

bool bunshin_recording(void);
/* Dump: waits until the source is frozen and may be seized. */
int bunshin_record_start(void);
/* Dump: a process of the frozen source is ending and cannot be stopped yet; false: not here. */
bool bunshin_wait_for_ends(unsigned long attempt);
/* Dump: all threads of the source are stopped. */
void bunshin_record_stopped(void);
/* Dump: a task's smaps, or what serves as such. */
int bunshin_smaps_open(pid_t pid);
/* Dump: a task's mappings, parsed ahead: 0; 1: they are not known. */
int bunshin_known_mappings(pid_t pid, struct vm_area_list *vmas, int (*dump)(struct vma_area *vma, int fd));
/* Dump: adds a task's guard pages; 1: they are not known. */
int bunshin_record_guards(pid_t pid, struct vm_area_list *vmas);
/* Dump: hands a task's private memory to the pool. @stat: from before the dump had it do anything. */
struct parasite_ctl;
struct proc_pid_stat;
int bunshin_record_task(struct pstree_item *item, struct vm_area_list *vmas, const struct proc_pid_stat *stat,
			struct parasite_ctl *ctl);
/* Dump: the contents of an open file without a name. */
int bunshin_record_ghost(int fd, struct cr_img *img, size_t size, bool chunks);
/* Dump: hands shared memory to the pool. */
int bunshin_record_shmem(int fd, unsigned long shmid, unsigned long size);
/* Dump: all is collected (or failed: @ret); the tasks are about to be let go. Returns the new ret. */
int bunshin_record_settle(int ret);
/* Dump: they have been let go; tells the pool, and does what has waited for that. Returns the new ret. */
int bunshin_record_gone(int ret);
/* Dump: whether the only object of an image is kept, to be written by bunshin_write_now(). */
bool bunshin_write_later(struct cr_img *img, void *object, int type);
int bunshin_write_now(void);

void bunshin_made_file(void);
bool bunshin_branching(void);
/* Restore: the root task has read the images; the first file is about to be opened. As bunshin_branching(). */
bool bunshin_root_prepared(void);
/* Restore: a task has begun; the root one enters its cgroups, and what it forks on the way to its children inherits nothing. */
int bunshin_task_started(void);
/* Restore: as the system call; a branch's root task is born in its cgroup. */
long bunshin_clone3(struct _clone_args *args, size_t size);
/*
 * Nothing but what libsoccr makes leaves the sockets of the tasks' network until it is let go, or this process ends.
 * NULL: cannot be done; logged.
 */
struct nl_sock *bunshin_hold(void);
int bunshin_let_go(struct nl_sock *holder);
/* Dump: the queues of a socket, when it is collected. */
void bunshin_saw_queue(const struct inet_diag_msg *msg, int type);
/* Dump: all sockets are collected; waits until nothing is on its way between them. */
int bunshin_tcp_rest(void);
/* Dump: as libsoccr_save(). */
int bunshin_save_connection(struct libsoccr_sk *sk, struct libsoccr_sk_data *data, unsigned int size);
/* Dump: all is recorded; whether nothing has come meanwhile. */
int bunshin_tcp_rested(void);
/* Restore: the images have a TCP connection. */
void bunshin_saw_connection(void);
/* Restore: from here on nothing is sent in the branch's network if it has TCP connections; until these are all there. */
void bunshin_hold_packets(void);
int bunshin_release_packets(void);
/* The root task's pid as the pool sees it. */
void bunshin_root_made(pid_t root);
/* Restore: decides what the child about to be forked inherits. */
int bunshin_before_fork(struct pstree_item *child);
/* Restore: the current task has made its children: lets go of what was theirs. */
void bunshin_children_made(void);
/* Restore: in place of mapping and reading the current task's pages. */
int bunshin_map_task(struct pstree_item *item);
struct bunshin_task;
/* Before @item forks its children: mappings of files that it inherited stay, those that its children have too are made. */
int bunshin_share_mappings(const struct bunshin_task *task, struct pstree_item *item);
/* Restore: @len bytes where neither we nor the task has a mapping, not below @min; MAP_FAILED: there are none. */
void *bunshin_find_hole(struct vm_area_list *vmas, unsigned long min, unsigned long len);
/* Restore: writes down for the restorer what it shall move where. */
int bunshin_prepare_moves(struct task_restore_args *args);
/* Restore: begins to trace a thread; false: not done, CRIU shall do it its own way. */
bool bunshin_seize(struct pstree_item *item, int thread);
/* Restore: whether threads stop by themselves in the end. */
bool bunshin_threads_trap(void);
int bunshin_restore_tmpfs(int archive_fd, const char *mountpoint);
/* Restore: starts what fills shared memory, in the process that all tasks come of; a task has it fill an object. */
int bunshin_filler_start(void);
int bunshin_restore_shmem(void *addr, unsigned long size, unsigned long id);

/* ---- arenas ---- */

struct bunshin_range {
	uint64_t start, end;
};

struct bunshin_ranges {
	struct bunshin_range *v;
	size_t n, room;
};

enum bunshin_kind {
	BUNSHIN_WHOLE = 1, /* the segment is the whole VMA */
	BUNSHIN_RUN,	   /* dirty pages of loaded code's file, moved over its mapping */
	BUNSHIN_COPY,	   /* pages to be copied into a mapping of another kind (other files, huge pages) */
};

/* A VMA of the source with private pages. */
struct bunshin_vma {
	uint64_t start, end;
	uint32_t prot;
	uint32_t flags; /* of mmap */
	uint32_t kind;
	uint32_t whole; /* every page counts, resident or not */
	uint32_t sealed; /* of a file, and never was writable */
	uint32_t dense;	 /* nearly all of it is resident, and it is not large */
	uint32_t aio;	 /* reads that were begun may end in other mappings at any time */
	uint64_t file;	/* tells files of one task apart; 0: none */
};

/*
 * A task's arena is a stretch of the pool's address space that meets none of the
 * task's own addresses. Segments are in it in no order, each one VMA; small ones without holes lie close together, for
 * the kernel to have them as one mapping, and in huge pages:
 *
 *   arena  |seg|seg|seg|...        | seg |      | seg  | ...                        |
 *          base        base + dense             2 MiB congruent     base + used     base + size
 *                                               with its target
 *
 * segs is sorted by start (addresses in the source).
 */
struct bunshin_seg {
	uint64_t start, end;
	char *addr;
	uint32_t prot, flags;
	uint32_t kind;
	bool whole; /* all its pages count, as in its VMA */
	bool moved; /* its pages went elsewhere while the next list was made */
	uint64_t kept; /* from start to here it has pages of the list before */
};

struct bunshin_segs {
	struct bunshin_seg *v;
	size_t n, room;
};

/* See bunshin-frames.h. */
struct bunshin_known {
	struct bunshin_ranges ranges;
	uint64_t *entries;
	size_t n, room;
	size_t at, before; /* where the last question was answered */
	bool moved; /* pages may be elsewhere now: what was in the same frame then need not be */
};

struct bunshin_task {
	pid_t vpid;
	pid_t real; /* of the source, while it is recorded */
	char *base;
	uint64_t size, used;
	uint64_t dense, dense_room; /* used and size of the part for dense segments, at the beginning */
	struct bunshin_segs segs, next; /* as it is; as it becomes */
	struct bunshin_ranges source; /* private pages of the source, until the sweep */
	struct bunshin_ranges same;   /* those of them that were not copied, since they are ours as well */
	struct bunshin_ranges sealed; /* ahead: mappings that cannot have any without a fault, each an entry */
	uint64_t faults;	      /* ahead: what the process had taken then */
	struct bunshin_known known;   /* ahead */
	uint64_t poked;		      /* page of code that the dump makes it run calls from, while it is recorded */
	bool inherited; /* restore: in this process's address space */
};

extern struct bunshin_task *bunshin_tasks;
extern size_t bunshin_n_tasks;

struct bunshin_task *bunshin_task_find(pid_t vpid);
/* Finds or makes the task; its arena keeps clear of @vmas and has room for them. */
struct bunshin_task *bunshin_task_get(pid_t vpid, const struct bunshin_vma *vmas, size_t n);
/* What was seen of it while the source ran counts no more. */
void bunshin_task_forget_ahead(struct bunshin_task *task);
/* Lets go of what the pool has of it: all is copied anew should the task live on. */
void bunshin_task_drop(struct bunshin_task *task);
/* Drops the tasks whose real pid is 0. */
void bunshin_tasks_sweep(void);

/*
 * The next list is made in ascending order, then takes the old one's place with
 * bunshin_task_commit(). For a whole VMA: what the old list has of it if that can be
 * kept in one piece, else a new mapping.
 */
struct bunshin_seg *bunshin_seg_whole(struct bunshin_task *task, const struct bunshin_vma *vma);
/* For pages of a file mapping: a new mapping, or a part of an old one. */
struct bunshin_seg *bunshin_seg_run(struct bunshin_task *task, const struct bunshin_vma *vma, uint64_t start,
				    uint64_t end);
struct bunshin_seg *bunshin_seg_keep(struct bunshin_task *task, const struct bunshin_seg *old,
				     const struct bunshin_vma *vma, uint64_t start, uint64_t end);
int bunshin_task_commit(struct bunshin_task *task);
/* Index of the first segment that ends above @addr. */
size_t bunshin_segs_find(const struct bunshin_segs *segs, uint64_t addr);
struct bunshin_seg *bunshin_segs_append(struct bunshin_segs *segs, const struct bunshin_seg *seg);
/* MADV_DOFORK or MADV_DONTFORK on all of a task's arena. */
void bunshin_task_advise(const struct bunshin_task *task, int advice);
void bunshin_tasks_advise(int advice);

/* ---- scanning ---- */

void bunshin_ranges_free(struct bunshin_ranges *ranges);
/* Index of the first range that ends above @addr. */
size_t bunshin_ranges_find(const struct bunshin_ranges *ranges, uint64_t addr);
/* Adds a range behind the others; an entry of its own, or as a part of the last if it follows that. */
int bunshin_ranges_push(struct bunshin_ranges *ranges, uint64_t start, uint64_t end);
int bunshin_ranges_add(struct bunshin_ranges *ranges, uint64_t start, uint64_t end);
/* How many page faults a process has taken; 0: not known. */
uint64_t bunshin_faults_of(pid_t pid);
/* Ahead: notes the sealed mappings that have no pages of their own among these, in order. */
int bunshin_sealed_keep(struct bunshin_task *task, const struct bunshin_vma *vmas, size_t n, const struct bunshin_ranges *source);
/* Frozen: those are sealed still, if they are the same mappings and their process has taken no fault since: @faults. */
void bunshin_sealed_mark(const struct bunshin_task *task, uint64_t faults, struct bunshin_vma *vmas, size_t n);
/* Private pages (resident or swapped out, not zero pages, not guards) between two addresses, in order. */
int bunshin_scan(int pagemap_fd, uint64_t start, uint64_t end, struct bunshin_ranges *ret_ranges);
/*
 * The same in a process's mappings that have a kind; @all: also in those that are sealed. *ret_watched: those of them
 * that are in mappings whose writes are noted now.
 */
int bunshin_scan_vmas(int pagemap_fd, const struct bunshin_vma *vmas, size_t n, bool all,
		      struct bunshin_ranges *ret_ranges, struct bunshin_ranges *ret_watched);
/* The VMAs of a running process, as far as its smaps tell; lines of no use may be missing. */
int bunshin_parse_vmas(const char *smaps, size_t size, struct bunshin_vma **ret_vmas, size_t *ret_n);
/*
 * Private mappings of files that no mapping of the task runs code from become COPY. Pages moved over a
 * file mapping are anonymous: MADV_DONTNEED would then make them zero, where it should bring the file's
 * content back. Nobody does that to a library's relocations, and they are most of what is dirty.
 */
void bunshin_mark_copies(struct bunshin_vma *vmas, size_t n);
/* As the images describe it. */
void bunshin_vma_fill(struct bunshin_vma *to, struct vma_area *vma);
/* All processes below @root: real and inner pids. */
struct bunshin_pid {
	pid_t real, vpid;
};
int bunshin_read_tree(pid_t root, struct bunshin_pid **ret_pids, size_t *ret_n);

/* ---- filling ---- */

struct bunshin_fill_stats {
	uint64_t copied_bytes, shared_bytes;
};
extern struct bunshin_fill_stats bunshin_fill_stats;
/* The pool is a fork of the one that the source came from: equal pages may be the same ones. */
extern bool bunshin_fill_inherited;

/* Source runs, and its mappings are learnt: makes room for what it has now, so that little is left for later. */
int bunshin_fill_ahead(pid_t root);
/* Source is frozen. */
void bunshin_fill_begin(void);
struct bunshin_frozen {
	uint64_t faults; /* that the task has taken by itself */
	uint64_t poked;
};
/*
 * One task: queues the copying. @vmas are all that it has, in order, and are written to. @frozen: NULL when ahead.
 */
int bunshin_fill_task(pid_t vpid, pid_t real, const struct bunshin_frozen *frozen, struct bunshin_vma *vmas, size_t n);
/*
 * The dump has put back what it poked into code, which may have been copied in between: those pages are copied again.
 * Returns once all is copied.
 */
int bunshin_fill_poked(void);
/*
 * Still frozen, all is copied: frames are compared again if the kernel has moved pages since
 * bunshin_fill_begin(), as two pages could have been in one frame one after the other.
 */
int bunshin_fill_recheck(void);
/* Source runs again: lets go of what it no longer has. */
int bunshin_fill_sweep(void);

/* ---- presence ---- */

/* Notes pages of the arenas; bunshin_populate() makes all that were noted present, as huge pages if it may. */
int bunshin_populate_add(const char *at, uint64_t len);
void bunshin_populate(bool huge);

/* ---- open files without a name ---- */

int bunshin_ghost_fill(int fd, int image, size_t size, bool chunks);

/* ---- shared memory ---- */

int bunshin_shm_fill(int fd, uint64_t shmid, uint64_t size);
void bunshin_shm_begin(void);
void bunshin_shm_sweep(void);
/* All is there: makes huge pages of it. */
int bunshin_shm_settle(void);
void bunshin_shm_advise(int advice);
uint64_t bunshin_shm_bytes(void);

/* The i-th object's id; false past the last. */
bool bunshin_shm_id(size_t i, uint64_t *ret_id);
/* Writes its populated pages into an object of that size. */
int bunshin_shm_write(uint64_t id, uint64_t size, int fd);
/* Writes its populated pages. */
struct bunshin_pages;
int bunshin_shm_put(size_t i, struct bunshin_pages *pages);
/* Makes an object and says where it lies; then which of it is populated, in order. */
char *bunshin_shm_make(uint64_t id, uint64_t size);
int bunshin_shm_populate(uint64_t id, uint64_t start, uint64_t end);

/* ---- files open for writing ---- */

/* The workspace that is about to be recorded. */
void bunshin_copyup_source(pid_t root, const char *upper);
/* From the images; and from that workspace, if it has not been asked before. */
int bunshin_copyup_learn(void);
/* Starts a process that does it, below @root_path. @upper, @view: where to, where from; -1: the overlay shall do it. */
void bunshin_copyup_start(const char *root_path, int upper, int view);
/* Returns once it has ended, if there is one. */
void bunshin_copyup_wait(void);

/* ---- on disk ---- */

/* Writes the pool and the images that it recorded as a complete directory of images. */
int bunshin_save(int images_fd, int dir_fd);
/* Makes the pool from such a directory, and copies what is not memory to @images_fd. */
int bunshin_load(int dir_fd, int images_fd);
/* Pages that go to the address @to. */
int bunshin_pages_put(struct bunshin_pages *pages, uint64_t to, const char *from, uint64_t len);

/* ---- requests ---- */

struct bsh_pool_prepare;
struct bsh_pool_branch;
struct bsh_pool_answer;

int bunshin_set_external_net(pid_t root, const char *key);
int bunshin_prepare(const struct bsh_pool_prepare *req, int images_fd);
int bunshin_record(struct bsh_pool_answer *answer);
int bunshin_release(struct bsh_pool_answer *answer);
/* The source runs: waits until the dump has written all that is left. */
int bunshin_record_finish(void);
void bunshin_record_abandon(void);
/* In a forked pool: what its parent recorded is not its own. */
void bunshin_record_reset(void);
/* In a fork of the pool: runs the restore and answers. Does not return. */
void bunshin_branch_run(const struct bsh_pool_branch *req, const int *fds) __attribute__((noreturn));

void bunshin_phase(const char *name);
void bunshin_error_text(const char *line, char *ret_text, size_t room);

#endif
