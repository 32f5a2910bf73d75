// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that copy pages of a frozen process straight into the pool, while
 * the dump goes on beside them.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bunshin-copy.h"
#include "log.h"
#include "page.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define THREADS_MAX 4
#define JOB_RANGES 256
#define JOB_BYTES (2u << 20)
#define READS_MAX 512 /* of UIO_MAXIOV */

/* Of an entry in /proc/PID/pagemap. */
#define PM_PRESENT (1ull << 63)
#define PM_FILE (1ull << 61)
#define PM_EXCLUSIVE (1ull << 56)

struct piece {
	struct iovec from;
	char *to;
	enum bunshin_sharing how;
};

struct job {
	struct job *next;
	pid_t pid;
	size_t n;
	struct piece pieces[JOB_RANGES];
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	pthread_t threads[THREADS_MAX];
	unsigned int n_threads, busy;
	struct job *first, **last;
	bool stop;
	bool pass_over; /* what is not there any more */
	int failed; /* errno of the first failure */
	pid_t failed_pid;
} queue = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.idle = PTHREAD_COND_INITIALIZER,
	.last = &queue.first,
};

static struct job *open_job;
static size_t open_bytes;

/* Reads from one process, as few calls as will do. */
struct reader {
	pid_t pid;
	int mem, pagemap; /* opened when first needed */
	size_t n;
	struct iovec from[READS_MAX], to[READS_MAX];
};

static int open_proc_file(int *fd, pid_t pid, const char *name)
{
	char path[64];

	if (*fd >= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	return *fd < 0 ? errno : 0;
}

/* Mappings that their own process may not read, and whatever else process_vm_readv() stops at. */
static int read_mem(struct reader *r, struct iovec from, char *to)
{
	int ret = open_proc_file(&r->mem, r->pid, "mem");

	while (from.iov_len && !ret) {
		ssize_t got = pread(r->mem, to, from.iov_len, (off_t)(unsigned long)from.iov_base);

		if (got < 0 && errno == EIO && queue.pass_over)
			got = PAGE_SIZE;
		if (got <= 0)
			return got ? errno : EFAULT;
		from.iov_base += got;
		from.iov_len -= got;
		to += got;
	}
	return ret;
}

static int flush_reads(struct reader *r)
{
	size_t want = 0, i;
	ssize_t got;
	int ret = 0;

	for (i = 0; i < r->n; i++)
		want += r->from[i].iov_len;
	if (!want)
		return 0;
	got = process_vm_readv(r->pid, r->to, r->n, r->from, r->n, 0);
	if (got < 0 && errno != EFAULT)
		return errno;
	/* It stops at the first address that it may not read. */
	for (i = 0; i < r->n && got != (ssize_t)want && !ret; i++)
		ret = read_mem(r, r->from[i], r->to[i].iov_base);
	r->n = 0;
	return ret;
}

/*
 * process_vm_readv() pins what it reads, and a pin makes a page that fork() left shared a copy of its own first: in the
 * source, while it stands still, for ever. Reading the memory file does not.
 */
static bool is_shared(uint64_t entry)
{
	return entry & PM_PRESENT && !(entry & (PM_EXCLUSIVE | PM_FILE));
}

enum bunshin_sharing bunshin_sharing_of(uint64_t entry)
{
	return is_shared(entry) ? BUNSHIN_PAGES_SHARED : BUNSHIN_PAGES_OWN;
}

static int read_run(struct reader *r, bool shared, struct iovec from, char *to)
{
	int ret = 0;

	if (shared)
		return read_mem(r, from, to);
	if (r->n == READS_MAX)
		ret = flush_reads(r);
	r->from[r->n] = from;
	r->to[r->n++] = (struct iovec){ to, from.iov_len };
	return ret;
}

/* Page tables' entries of a range tell which pages are shared; runs of one kind are read at a time. */
static int read_range(struct reader *r, struct iovec from, char *to)
{
	uint64_t start = (unsigned long)from.iov_base, entries[JOB_BYTES / PAGE_SIZE];
	size_t n = from.iov_len / PAGE_SIZE, i, next;

	if (open_proc_file(&r->pagemap, r->pid, "pagemap") ||
	    pread(r->pagemap, entries, n * sizeof(*entries), start / PAGE_SIZE * sizeof(*entries)) !=
		    (ssize_t)(n * sizeof(*entries)))
		return read_run(r, false, from, to);
	for (i = 0; i < n; i = next) {
		struct iovec run = { (char *)from.iov_base + i * PAGE_SIZE };
		bool shared = is_shared(entries[i]);
		int ret;

		for (next = i + 1; next < n && is_shared(entries[next]) == shared; next++)
			;
		run.iov_len = (next - i) * PAGE_SIZE;
		ret = read_run(r, shared, run, to + i * PAGE_SIZE);
		if (ret)
			return ret;
	}
	return 0;
}

static int read_all(pid_t pid, const struct piece *pieces, size_t n)
{
	struct reader *r = xmalloc(sizeof(*r));
	int ret = 0;
	size_t i;

	if (!r)
		return ENOMEM;
	r->pid = pid;
	r->mem = r->pagemap = -1;
	r->n = 0;
	for (i = 0; i < n && !ret; i++)
		ret = pieces[i].how == BUNSHIN_PAGES_MIXED
			      ? read_range(r, pieces[i].from, pieces[i].to)
			      : read_run(r, pieces[i].how == BUNSHIN_PAGES_SHARED, pieces[i].from, pieces[i].to);
	if (!ret)
		ret = flush_reads(r);
	if (r->mem >= 0)
		close(r->mem);
	if (r->pagemap >= 0)
		close(r->pagemap);
	xfree(r);
	return ret;
}

static void run_job(struct job *job)
{
	int ret = read_all(job->pid, job->pieces, job->n);

	if (!ret)
		return;
	pthread_mutex_lock(&queue.lock);
	if (!queue.failed) {
		queue.failed = ret;
		queue.failed_pid = job->pid;
	}
	pthread_mutex_unlock(&queue.lock);
}

/* The next job if there is one; with the lock, which is let go while it runs. */
static bool run_next_locked(void)
{
	struct job *job = queue.first;

	if (!job)
		return false;
	queue.first = job->next;
	if (!queue.first)
		queue.last = &queue.first;
	queue.busy++;
	pthread_mutex_unlock(&queue.lock);
	run_job(job);
	xfree(job);
	pthread_mutex_lock(&queue.lock);
	queue.busy--;
	if (!queue.busy && !queue.first)
		pthread_cond_signal(&queue.idle);
	return true;
}

static void *copier(void *arg)
{
	pthread_mutex_lock(&queue.lock);
	while (!queue.stop || queue.first)
		if (!run_next_locked())
			pthread_cond_wait(&queue.work, &queue.lock);
	pthread_mutex_unlock(&queue.lock);
	return arg;
}

int bunshin_copy_begin(void)
{
	long wanted;

	queue.stop = false;
	queue.failed = 0;
	/* One processor is for the dump. */
	wanted = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	wanted = wanted < 1 ? 1 : wanted > THREADS_MAX ? THREADS_MAX : wanted;
	for (queue.n_threads = 0; queue.n_threads < wanted; queue.n_threads++) {
		errno = pthread_create(&queue.threads[queue.n_threads], NULL, copier, NULL);
		if (errno) {
			pr_perror("cannot start a copying thread");
			bunshin_copy_end();
			return -1;
		}
	}
	return 0;
}

void bunshin_copy_end(void)
{
	unsigned int i;

	xfree(open_job);
	open_job = NULL;
	pthread_mutex_lock(&queue.lock);
	queue.stop = true;
	pthread_cond_broadcast(&queue.work);
	pthread_mutex_unlock(&queue.lock);
	for (i = 0; i < queue.n_threads; i++)
		pthread_join(queue.threads[i], NULL);
	queue.n_threads = 0;
}

void bunshin_copy_flush(void)
{
	struct job *job = open_job;

	if (!job)
		return;
	open_job = NULL;
	open_bytes = 0;
	pthread_mutex_lock(&queue.lock);
	*queue.last = job;
	queue.last = &job->next;
	pthread_cond_signal(&queue.work);
	pthread_mutex_unlock(&queue.lock);
}

static int add_piece(pid_t pid, const struct piece *piece)
{
	if (open_job && (open_job->pid != pid || open_job->n == JOB_RANGES || open_bytes >= JOB_BYTES))
		bunshin_copy_flush();
	if (!open_job) {
		open_job = xmalloc(sizeof(*open_job));
		if (!open_job)
			return -1;
		open_job->next = NULL;
		open_job->pid = pid;
		open_job->n = 0;
	}
	open_job->pieces[open_job->n++] = *piece;
	open_bytes += piece->from.iov_len;
	return 0;
}

int bunshin_copy_add(pid_t pid, uint64_t from, char *to, uint64_t len, enum bunshin_sharing how)
{
	while (len) {
		struct piece piece = { { (void *)from, len < JOB_BYTES ? len : JOB_BYTES }, to, how };

		if (add_piece(pid, &piece))
			return -1;
		from += piece.from.iov_len;
		to += piece.from.iov_len;
		len -= piece.from.iov_len;
	}
	return 0;
}

int bunshin_copy_wait(void)
{
	bunshin_copy_flush();
	pthread_mutex_lock(&queue.lock);
	/* The dump is done or waits: its processor is free for this. */
	while (run_next_locked())
		;
	while (queue.first || queue.busy)
		pthread_cond_wait(&queue.idle, &queue.lock);
	pthread_mutex_unlock(&queue.lock);
	if (!queue.failed)
		return 0;
	errno = queue.failed;
	pr_perror("cannot copy memory of %d", queue.failed_pid);
	return -1;
}

int bunshin_copy_ahead(void)
{
	int ret;

	queue.failed = 0;
	queue.pass_over = true;
	ret = bunshin_copy_wait();
	queue.pass_over = false;
	return ret;
}

void bunshin_copy_drop(void)
{
	struct job *job;

	bunshin_copy_flush();
	while ((job = queue.first)) {
		queue.first = job->next;
		xfree(job);
	}
	queue.last = &queue.first;
}
