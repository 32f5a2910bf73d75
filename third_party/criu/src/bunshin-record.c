// SPDX-License-Identifier: GPL-2.0-only
/*
 * The dump. CRIU's runs once in a process, so it runs in a child of the pool;
 * the child writes the metadata and tells the pool which memory there is:
 *
 *   dump (child)                       pool
 *   set up, parse smaps          <- LEARN when the pool has made room
 *   read it again where changed
 *   DONE                          ->
 *                                <- GO when the core says that the source is frozen
 *   seize
 *   TASK: VMAs in the shared page ->   plan, queue the copying; threads copy
 *   SHMEM, GHOST with descriptors ->   copies, while the dump goes on
 *   SETTLED                       ->   waits for the threads
 *                                <- DONE when the core releases the source
 *   let go
 *   GONE                          ->   the core hears that the source may run
 *   write images, exit                 wait for it
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <compel/infect.h>

#include "bunshin-copy.h"
#include "bunshin-kmod.h"
#include "bunshin-msg.h"
#include "bunshin-pool-proto.h"
#include "bunshin-pool.h"
#include "bunshin-restart.h"
#include "bunshin-scout.h"
#include "bunshin-smaps.h"
#include "bunshin-watch.h"
#include "cr_options.h"
#include "crtools.h"
#include "image.h"
#include "kerndat.h"
#include "log.h"
#include "mman.h"
#include "page.h"
#include "pagemap-cache.h"
#include "proc_parse.h"
#include "pstree.h"
#include "servicefd.h"
#include "shmem.h"
#include "util.h"
#include "vma.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define LONG_TURN_NS 50000000ull

enum { LEARN = 1, GO, TASK, SHMEM, GHOST, SETTLED, GONE, DONE };

struct note {
	uint32_t type;
	int32_t ret;
	int32_t vpid, real;
	uint64_t n; /* TASK: VMAs; SHMEM: bytes */
	uint64_t id; /* TASK: its first VMA's index */
	struct bunshin_frozen frozen; /* TASK */
};

#define VMAS_MAX (1u << 21) /* of all tasks */

/* Between the two processes. */
struct shared {
	unsigned int n_phases;
	struct bsh_pool_phase phases[BSH_POOL_PHASES_MAX];
	unsigned int made_files;
	char error[512];
	struct bunshin_vma vmas[VMAS_MAX];
};

static struct {
	struct shared *shared;
	int socket; /* this side's end */
	pid_t child;
	bool recording; /* in the child */
} rec = { .socket = -1 };

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Ends the running phase and starts the next; NULL only ends it. */
void bunshin_phase(const char *name)
{
	struct shared *s = rec.shared;
	struct bsh_pool_phase *p;
	int64_t now = now_ns();

	if (!s)
		return;
	if (s->n_phases && !s->phases[s->n_phases - 1].length_ns)
		s->phases[s->n_phases - 1].length_ns = now - s->phases[s->n_phases - 1].start_ns;
	if (!name || s->n_phases == BSH_POOL_PHASES_MAX)
		return;
	p = &s->phases[s->n_phases++];
	*p = (struct bsh_pool_phase){ .start_ns = now };
	snprintf(p->name, sizeof(p->name), "%s", name);
}

#define NOTE_FDS 2

static int say_with(struct note note, const int *fds, unsigned int n_fds)
{
	return bunshin_msg_send(rec.socket, &note, sizeof(note), fds, n_fds);
}

static int say(struct note note)
{
	return say_with(note, NULL, 0);
}

static void close_all(const int *fds, unsigned int n)
{
	while (n)
		close(fds[--n]);
}

/* 0 with a note and its descriptors; -1 when the other side is gone. */
static int hear_with(struct note *note, int *fds, unsigned int *ret_n_fds)
{
	*ret_n_fds = NOTE_FDS;
	return bunshin_msg_receive(rec.socket, note, sizeof(*note), fds, ret_n_fds) == sizeof(*note) ? 0 : -1;
}

static int hear(struct note *note)
{
	unsigned int n_fds;
	int fds[NOTE_FDS];

	if (hear_with(note, fds, &n_fds))
		return -1;
	close_all(fds, n_fds);
	return 0;
}

static int ask(struct note note)
{
	if (say(note) || hear(&note))
		return -1;
	return note.ret;
}

/* ---- in the dump ---- */

bool bunshin_recording(void)
{
	return rec.recording;
}

void bunshin_made_file(void)
{
	if (rec.recording)
		rec.shared->made_files = 1;
}

/*
 * Soon the source stands still, and the dump is woken by its processes some hundred times: on a busy machine it
 * would stand in line as often, and behind its own scout. Best effort, since not every host permits it, and not for who was told to be nice.
 */
static void go_first(void)
{
	struct sched_param first = { .sched_priority = 1 };

	if (sched_getscheduler(0) == SCHED_OTHER && getpriority(PRIO_PROCESS, 0) <= 0)
		sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first);
}

int bunshin_record_start(void)
{
	struct note note;

	if (!rec.recording)
		return 0;
	/* What the pool has learnt, beside its other preparations; then what has changed meanwhile. */
	if (bunshin_smaps_parse() || hear(&note) || note.type != LEARN ||
	    bunshin_smaps_learn(root_item->pid->real) || bunshin_smaps_parse() ||
	    bunshin_restart_learn(root_item->pid->real) || bunshin_smaps_scout())
		return -1;
	go_first();
	if (say((struct note){ .type = DONE }) || hear(&note) || note.type != GO)
		return -1;
	bunshin_phase("seize");
	return 0;
}

/* A millisecond at first, then ever longer, until CRIU gives up after ten seconds. */
bool bunshin_wait_for_ends(unsigned long attempt)
{
	struct timespec nap = { .tv_nsec = min_t(unsigned long, 1 + attempt * attempt / 4, 999) * 1000000 };

	if (!rec.recording)
		return false;
	nanosleep(&nap, NULL);
	return true;
}

void bunshin_record_stopped(void)
{
	if (rec.recording)
		bunshin_scout_go();
}

static uint32_t kind_of(struct vma_area *vma)
{
	if (!vma_area_is_private(vma, kdat.task_size) || vma_area_is(vma, VMA_AREA_VVAR) ||
	    (vma->e->flags & MAP_DROPPABLE))
		return 0;
	if (vma->e->flags & MAP_HUGETLB)
		return BUNSHIN_COPY;
	return vma_area_is(vma, VMA_FILE_PRIVATE) ? BUNSHIN_RUN : BUNSHIN_WHOLE;
}

void bunshin_vma_fill(struct bunshin_vma *to, struct vma_area *vma)
{
	*to = (struct bunshin_vma){
		.start = vma->e->start,
		.end = vma->e->end,
		.prot = vma->e->prot,
		.flags = vma->e->flags,
		.kind = kind_of(vma),
		.file = vma_area_is(vma, VMA_FILE_PRIVATE) ? vma->e->shmid : 0,
		.whole = vma_area_is(vma, VMA_AREA_VDSO) || vma_area_is(vma, VMA_AREA_AIORING),
	};
}

/* Shared memory that the pool knows of. */
static struct {
	unsigned long id, size;
} *told;
static size_t n_told;

static int tell_shmem(int fd, unsigned long id, unsigned long size)
{
	size_t i;
	void *all;

	for (i = 0; i < n_told && told[i].id != id; i++)
		;
	if (i < n_told && told[i].size >= size)
		return 0;
	if (i == n_told) {
		all = xrealloc(told, (n_told + 1) * sizeof(*told));
		if (!all)
			return -1;
		told = all;
		told[n_told++].id = id;
	}
	told[i].size = size;
	return say_with((struct note){ .type = SHMEM, .id = id, .n = size }, &fd, 1);
}

/* CRIU dumps it last, and all would wait for its copying; so the pool is told when it is first seen. */
static int record_shared(pid_t pid, VmaEntry *vma)
{
	char path[96];
	int fd, ret;

	if (add_shmem_area(pid, vma, NULL))
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, pid, vma->start, vma->end);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0; /* CRIU will open it, or say why not */
	ret = tell_shmem(fd, vma->shmid, vma->pgoff + (vma->end - vma->start));
	close(fd);
	return ret;
}

int bunshin_record_task(struct pstree_item *item, struct vm_area_list *vmas, const struct proc_pid_stat *stat,
			struct parasite_ctl *ctl)
{
	static size_t used;
	struct note note = {
		.type = TASK, .vpid = vpid(item), .real = item->pid->real, .id = used,
		.frozen = { .faults = stat->min_flt + stat->maj_flt, .poked = compel_infect_ctx(ctl)->syscall_ip },
	};
	struct vma_area *vma;

	list_for_each_entry(vma, &vmas->h, list) {
		if (vma_area_is(vma, VMA_AREA_GUARD))
			continue;
		if (vma_area_is(vma, VMA_AREA_SHSTK)) {
			pr_err("pid %d has a shadow stack, which the pool cannot carry\n", item->pid->real);
			return -1;
		}
		if (vma_area_is(vma, VMA_ANON_SHARED) && record_shared(item->pid->real, vma->e))
			return -1;
		if (used == VMAS_MAX) {
			pr_err("with pid %d there are more than %u mappings\n", item->pid->real, VMAS_MAX);
			return -1;
		}
		bunshin_vma_fill(&rec.shared->vmas[used++], vma);
	}
	note.n = used - note.id;
	bunshin_mark_copies(&rec.shared->vmas[note.id], note.n);
	return say(note);
}

int bunshin_record_shmem(int fd, unsigned long shmid, unsigned long size)
{
	return tell_shmem(fd, shmid, size);
}

/* The pool writes it into the image, whose head is written already. */
int bunshin_record_ghost(int fd, struct cr_img *img, size_t size, bool chunks)
{
	int fds[2] = { fd, img_raw_fd(img) };

	return say_with((struct note){ .type = GHOST, .id = chunks, .n = size }, fds, 2);
}

int bunshin_record_settle(int ret)
{
	const char *error;

	if (!rec.recording)
		return ret;
	bunshin_phase("wait for copies");
	ret = ret ?: bunshin_tcp_rested();
	error = log_first_err();
	if (ret)
		bunshin_error_text(error ?: "the dump failed", rec.shared->error, sizeof(rec.shared->error));
	if (ask((struct note){ .type = SETTLED, .ret = ret }))
		ret = -1;
	return ret;
}

int bunshin_record_gone(int ret)
{
	if (!rec.recording)
		return ret;
	if (say((struct note){ .type = GONE, .ret = ret }))
		return -1;
	return ret ?: bunshin_write_now();
}

static void run_dump(pid_t root, const char *log) __attribute__((noreturn));
static void run_dump(pid_t root, const char *log)
{
	sigset_t none;

	rec.recording = true;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	util_init();
	if (log_keep_err())
		_exit(1);
	log_fini();
	opts.output = (char *)log;
	if (log_init(log))
		_exit(1);
	/* Statistics go to where it runs. */
	if (fchdir(get_service_fd(IMG_FD_OFF)))
		_exit(1);
	opts.mode = CR_DUMP;
	opts.final_state = TASK_ALIVE;
	_exit(cr_dump_tasks(root) ? 1 : 0);
}

/* ---- in the pool ---- */

static int start_dump(pid_t root, const char *log)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		pr_perror("cannot make a socket pair");
		return -1;
	}
	/* The dump needs none of the memory. */
	bunshin_tasks_advise(MADV_DONTFORK);
	rec.child = fork();
	if (!rec.child) {
		close(ends[0]);
		rec.socket = ends[1];
		run_dump(root, log);
	}
	bunshin_tasks_advise(MADV_DOFORK);
	close(ends[1]);
	rec.socket = ends[0];
	if (rec.child < 0) {
		pr_perror("cannot fork");
		return -1;
	}
	return 0;
}

static int set_options(const struct bsh_pool_prepare *req, int images_fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", images_fd);
	if (open_image_dir(path, O_DUMP) < 0)
		return -1;
	opts.tree_id = req->root_pid;
	opts.freeze_cgroup = xstrdup(req->freezer);
	opts.ghost_limit = req->ghost_limit;
	opts.log_level = req->log_level;
	log_set_loglevel(req->log_level);
	return opts.freeze_cgroup ? bunshin_set_external_net(req->root_pid, req->net_key) : -1;
}

int bunshin_prepare(const struct bsh_pool_prepare *req, int images_fd)
{
	static char log[sizeof(req->log)];

	if (rec.shared) {
		pr_err("this pool has recorded already\n");
		return -1;
	}
	rec.shared = mmap(NULL, sizeof(*rec.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (rec.shared == MAP_FAILED) {
		rec.shared = NULL;
		pr_perror("cannot map the dump's page");
		return -1;
	}
	snprintf(log, sizeof(log), "%s", req->log[0] ? req->log : "/dev/null");
	bunshin_copyup_source(req->root_pid, req->upper);
	bunshin_phase("pool: mappings");
	if (set_options(req, images_fd) || bunshin_smaps_learn(req->root_pid) || start_dump(req->root_pid, log))
		return -1;
	/* After the fork: the dump needs no part of it. */
	if (req->share)
		bunshin_kmod_begin();
	if (!bunshin_kmod_ready() && bunshin_watch_start(req->root_pid, req->freezer))
		return -1;
	bunshin_phase("pool: ahead");
	if (bunshin_fill_ahead(req->root_pid))
		return -1;
	bunshin_smaps_forget();
	bunshin_phase("pool: learn");
	if (ask((struct note){ .type = LEARN })) {
		pr_err("the dump could not be prepared\n");
		return -1;
	}
	bunshin_phase(NULL);
	return 0;
}

static int serve_note(const struct note *note, const int *fds, unsigned int n_fds)
{
	switch (note->type) {
	case TASK:
		return bunshin_fill_task(note->vpid, note->real, &note->frozen, &rec.shared->vmas[note->id], note->n);
	case SHMEM:
		return n_fds == 1 ? bunshin_shm_fill(fds[0], note->id, note->n) : -1;
	case GHOST:
		return n_fds == 2 ? bunshin_ghost_fill(fds[0], fds[1], note->n, note->id) : -1;
	}
	pr_err("the dump said %u\n", note->type);
	return -1;
}

/* Serves the dump until it has settled. It waits for nothing in between: what we have not got to yet waits in the socket. */
static int serve_dump(void)
{
	struct note note;
	unsigned int n_fds;
	int fds[NOTE_FDS], ret = 0;

	if (say((struct note){ .type = GO }))
		return -1;
	while (!hear_with(&note, fds, &n_fds)) {
		if (note.type == SETTLED)
			return note.ret ?: ret;
		/* After a failure the rest is only taken. */
		ret = ret ?: serve_note(&note, fds, n_fds);
		close_all(fds, n_fds);
	}
	snprintf(rec.shared->error, sizeof(rec.shared->error), "the dump ended early");
	return -1;
}

/* The settled dump lets the source go. */
static int let_go(void)
{
	struct note note;

	if (say((struct note){ .type = DONE }) || hear(&note))
		return -1;
	return note.type == GONE ? note.ret : -1;
}

int bunshin_record_finish(void)
{
	pid_t ended;
	int status;

	if (rec.child <= 0)
		return -1;
	close(rec.socket);
	rec.socket = -1;
	while ((ended = waitpid(rec.child, &status, 0)) < 0 && errno == EINTR)
		;
	rec.child = 0;
	/* Its place is kept, since a pool records once. */
	madvise(rec.shared, sizeof(*rec.shared), MADV_REMOVE);
	/* One that was killed has been reaped already. */
	return ended > 0 && WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -1;
}

static uint64_t pool_bytes(void)
{
	return bunshin_fill_stats.copied_bytes + bunshin_fill_stats.shared_bytes;
}

/*
 * While it copies, the pool asks for long turns of a processor (6.12; ignored before): not for more of it, but so that
 * the source's processes, which the dump wakes for microseconds and waits for, go first where they meet.
 */
static void set_turns(uint64_t ns)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = { .size = sizeof(attr), .policy = SCHED_OTHER, .nice = getpriority(PRIO_PROCESS, 0), .runtime = ns };

	if (sched_getscheduler(0) == SCHED_OTHER)
		syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void fail_dump(void)
{
	say((struct note){ .type = DONE, .ret = -1 });
	bunshin_record_finish();
}

int bunshin_record(struct bsh_pool_answer *answer)
{
	int ret = -1;

	if (rec.socket < 0) {
		pr_err("nothing was prepared\n");
		return -1;
	}
	bunshin_fill_begin();
	bunshin_shm_begin();
	set_turns(LONG_TURN_NS);
	if (!bunshin_copy_begin()) {
		ret = serve_dump();
		if (bunshin_fill_poked() || (!ret && bunshin_fill_recheck()))
			ret = -1;
		bunshin_copy_end();
	}
	set_turns(0);
	bunshin_kmod_end();
	bunshin_phase("files");
	if (ret) {
		snprintf(answer->text, sizeof(answer->text), "%s", rec.shared->error);
		fail_dump();
		return -1;
	}
	answer->made_files = rec.shared->made_files;
	answer->copied_bytes = bunshin_fill_stats.copied_bytes;
	answer->shared_bytes = bunshin_fill_stats.shared_bytes;
	answer->pool_bytes = pool_bytes();
	return 0;
}

int bunshin_release(struct bsh_pool_answer *answer)
{
	int ret;

	bunshin_phase("let go");
	bunshin_kmod_end();
	ret = let_go();
	bunshin_phase(NULL);
	answer->n_phases = rec.shared->n_phases;
	memcpy(answer->phases, rec.shared->phases, sizeof(answer->phases));
	return ret;
}

void bunshin_record_abandon(void)
{
	bunshin_smaps_forget();
	bunshin_kmod_end();
	bunshin_watch_end();
	if (rec.child > 0)
		fail_dump();
}

void bunshin_record_reset(void)
{
	bunshin_kmod_end();
	bunshin_watch_end();
	if (rec.shared)
		munmap(rec.shared, sizeof(*rec.shared));
	rec.shared = NULL;
	if (rec.socket >= 0)
		close(rec.socket);
	rec.socket = -1;
	rec.child = 0;
}
