/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind protection keys stays behind them, for each thread as it was; on a processor without keys it is plain
 * memory. */
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>

#include "guest.h"

#define ROOM 16384

static struct {
	int key; /* -1: the processor has none */
	char *at;
} open_to_all, read_only, closed, freed;
static sigjmp_buf back;
static int refused_by;
static int wake[2], told[2];

static char *map(int key)
{
	char *at = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	if (key >= 0)
		CHECK(pkey_mprotect(at, ROOM, PROT_READ | PROT_WRITE, key) == 0);
	return at;
}

static void refuse(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	refused_by = info->si_code == SEGV_PKUERR ? (int)info->si_pkey : -1;
	siglongjmp(back, 1);
}

static uint32_t rights(void)
{
	uint32_t pkru, high;

	asm volatile(".byte 0x0f, 0x01, 0xee" : "=a"(pkru), "=d"(high) : "c"(0)); /* rdpkru */
	return pkru;
}

/* A handler has rights of its own, and jumping out of it keeps them. */
static void regain(uint32_t pkru)
{
	asm volatile(".byte 0x0f, 0x01, 0xef" : : "a"(pkru), "c"(0), "d"(0) : "memory"); /* wrpkru */
}

/* The key that keeps a byte from being written, or read; 0: it can be. */
static int keeper(volatile char *at, bool write)
{
	const uint32_t mine = rights();

	refused_by = 0;
	if (sigsetjmp(back, 1))
		regain(mine);
	else if (write)
		*at = 'x';
	else
		(void)*at;
	return refused_by;
}

/* It may use what is closed to the first thread, and may not what is open to it. */
static void *other_thread(void *arg)
{
	char byte;

	(void)arg;
	CHECK(pkey_set(closed.key, 0) == 0 && pkey_set(open_to_all.key, PKEY_DISABLE_ACCESS) == 0);
	while (read(wake[0], &byte, 1) == 1) {
		byte = pkey_get(closed.key) == 0 && pkey_get(open_to_all.key) == PKEY_DISABLE_ACCESS &&
		       closed.at[ROOM - 1] == 'c';
		CHECK(write(told[1], &byte, 1) == 1);
	}
	return NULL;
}

void guest_setup(void)
{
	const struct sigaction action = {.sa_sigaction = refuse, .sa_flags = SA_SIGINFO | SA_NODEFER};
	pthread_t thread;

	open_to_all.key = pkey_alloc(0, 0);
	open_to_all.at = map(open_to_all.key);
	if (open_to_all.key < 0)
		return;
	freed.key = pkey_alloc(0, 0);
	read_only.key = pkey_alloc(0, 0);
	closed.key = pkey_alloc(0, 0);
	freed.at = map(freed.key);
	read_only.at = map(read_only.key);
	closed.at = map(closed.key);
	closed.at[ROOM - 1] = 'c';
	CHECK(pkey_free(freed.key) == 0);
	CHECK(pkey_set(read_only.key, PKEY_DISABLE_WRITE) == 0 && pkey_set(closed.key, PKEY_DISABLE_ACCESS) == 0);
	CHECK(pkey_set(freed.key, PKEY_DISABLE_WRITE) == 0);
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	CHECK(pipe(wake) == 0 && pipe(told) == 0);
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
}

void guest_put(const char *tag)
{
	strcpy(open_to_all.at, tag);
}

void guest_check(const char *tag)
{
	char byte = 0;
	int key;

	CHECK_TAG(open_to_all.at, tag);
	if (open_to_all.key < 0)
		return;
	CHECK(pkey_get(read_only.key) == PKEY_DISABLE_WRITE && pkey_get(closed.key) == PKEY_DISABLE_ACCESS);
	CHECK(keeper(read_only.at, false) == 0 && keeper(read_only.at, true) == read_only.key);
	CHECK(keeper(closed.at, false) == closed.key && keeper(closed.at, true) == closed.key);
	CHECK(keeper(freed.at, false) == 0 && keeper(freed.at, true) == freed.key);
	CHECK(write(wake[1], &byte, 1) == 1 && read(told[0], &byte, 1) == 1 && byte == 1);
	/* What is allocated is allocated, what was freed is free. */
	CHECK(pkey_mprotect(closed.at, ROOM, PROT_READ | PROT_WRITE, closed.key) == 0);
	key = pkey_alloc(0, PKEY_DISABLE_WRITE);
	CHECK(key == freed.key && pkey_free(key) == 0);
	CHECK(pkey_mprotect(closed.at, ROOM, PROT_READ | PROT_WRITE, freed.key) == -1 && errno == EINVAL);
}
