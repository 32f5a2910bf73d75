// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whichever task of a branch makes an object of shared memory has to fill it. If each of them inherited what objects are
 * filled from, all of its pages would be copied and let go again for each, and that is most of what a small process
 * costs. So a thread of the restore's own process fills them, when it is asked and given the object.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#include "bunshin-pool.h"
#include "common/lock.h"
#include "fdstore.h"
#include "log.h"
#include "rst-malloc.h"
#include "util.h"

#undef LOG_PREFIX
#define LOG_PREFIX "filler: "

enum { IDLE, ASKED, DONE };

/* Between all of them. */
static struct filler {
	mutex_t lock; /* one asks at a time */
	futex_t state;
	int object; /* in the store of descriptors */
	uint64_t id, size;
	int ret;
} *filler;

static int fill(void)
{
	int fd = fdstore_get(filler->object), ret;

	if (fd < 0)
		return -1;
	ret = bunshin_shm_write(filler->id, filler->size, fd);
	close(fd);
	return ret;
}

/* It allocates nothing: tasks are forked beside it, and would find the lock taken for ever. */
static void *serve(void *arg)
{
	/* The others go from one mount namespace to another, which nobody may that shares a working directory. */
	if (unshare(CLONE_FS))
		pr_perror("cannot have a working directory of its own");
	while (1) {
		futex_wait_until(&filler->state, ASKED);
		filler->ret = fill();
		futex_set_and_wake(&filler->state, DONE);
	}
	return arg;
}

int bunshin_filler_start(void)
{
	sigset_t all, before;
	pthread_t thread;

	filler = shmalloc(sizeof(*filler));
	if (!filler)
		return -1;
	mutex_init(&filler->lock);
	futex_init(&filler->state);
	/* Signals are for who waits for the tasks. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	errno = pthread_create(&thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!errno)
		return 0;
	pr_perror("cannot start a thread");
	return -1;
}

static int ask(int fd, unsigned long size, unsigned long id)
{
	int ret = -1;

	mutex_lock(&filler->lock);
	filler->object = fdstore_add(fd);
	if (filler->object >= 0) {
		filler->id = id;
		filler->size = size;
		futex_set_and_wake(&filler->state, ASKED);
		futex_wait_until(&filler->state, DONE);
		futex_set(&filler->state, IDLE);
		ret = filler->ret;
	}
	mutex_unlock(&filler->lock);
	return ret;
}

int bunshin_restore_shmem(void *addr, unsigned long size, unsigned long id)
{
	int fd = open_proc_rw(PROC_SELF, "map_files/%lx-%lx", (unsigned long)addr, (unsigned long)addr + size), ret;

	if (fd < 0)
		return -1;
	ret = ask(fd, size, id);
	close(fd);
	return ret;
}
