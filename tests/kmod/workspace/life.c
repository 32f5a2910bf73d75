// SPDX-License-Identifier: GPL-2.0-only
/*
 * The main command of the workspace that is forked: several processes with
 * threads, joined by pipes, and memory to lose.
 *
 *   life MIB           runs
 *   life ask WORDS     says WORDS to the running one, prints its answer
 *
 *   fill SEED          every page of all memory, in every process: "ok"
 *   check SEED         "ok", or where it differs
 *   touch SEED PAGES   the first pages only
 *   ring               a token through all processes and both threads of each: the number of steps
 *
 * The first process listens on a socket; each hands a request on to the next
 * through a pipe, and the last one's pipe leads back to the first.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PROCESSES 4
#define PAGE 4096UL
#define SOCKET "/run/life.sock"

struct request {
	char what; /* f, c, t, r */
	uint64_t seed, pages;
	uint64_t steps;
	int64_t wrong; /* page that differs, or -1 */
};

static char *memory;
static size_t size;
static struct request in_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static int turn; /* 1: the thread's, 0: ours */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t mark(size_t at, uint64_t seed)
{
	return (at + 1) * 0x9e3779b97f4a7c15ULL ^ seed;
}

static void fill(uint64_t seed, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		*(uint64_t *)(memory + at) = mark(at, seed);
}

static int64_t differs(uint64_t seed, size_t from, size_t to)
{
	for (size_t at = from; at < to; at += PAGE)
		if (*(uint64_t *)(memory + at) != mark(at, seed))
			return at / PAGE;
	return -1;
}

/* The second thread does the work, so that it is part of what is forked. */
static void work(struct request *r)
{
	if (r->what == 'f')
		fill(r->seed, size);
	else if (r->what == 't')
		fill(r->seed, r->pages * PAGE);
	else if (r->what == 'c' && r->wrong < 0)
		r->wrong = differs(r->seed, r->pages * PAGE, size);
	r->steps++;
}

static void *second(void *arg)
{
	pthread_mutex_lock(&lock);
	while (1) {
		while (!turn)
			pthread_cond_wait(&given, &lock);
		work(&in_thread);
		turn = 0;
		pthread_cond_signal(&done);
	}
	return arg;
}

static void through_thread(struct request *r)
{
	pthread_mutex_lock(&lock);
	in_thread = *r;
	turn = 1;
	pthread_cond_signal(&given);
	while (turn)
		pthread_cond_wait(&done, &lock);
	*r = in_thread;
	r->steps++;
	pthread_mutex_unlock(&lock);
}

static void start_memory(size_t mib)
{
	pthread_t thread;

	size = mib << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	/* Small pages, the harder case. */
	madvise(memory, size, MADV_NOHUGEPAGE);
	fill(0, size);
	if (pthread_create(&thread, NULL, second, NULL))
		die("pthread_create");
}

static void pass(int from, int to)
{
	struct request r;

	while (read(from, &r, sizeof(r)) == sizeof(r)) {
		through_thread(&r);
		if (write(to, &r, sizeof(r)) != sizeof(r))
			die("write");
	}
	exit(0);
}

static struct sockaddr_un address(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = SOCKET };

	return a;
}

static void answer(int connection, int first, int last)
{
	struct request r = { .wrong = -1 };
	char line[128] = "", word[16] = "";

	if (read(connection, line, sizeof(line) - 1) <= 0 ||
	    sscanf(line, "%15s %lu %lu", word, &r.seed, &r.pages) < 1)
		return;
	r.what = word[0];
	through_thread(&r);
	if (write(first, &r, sizeof(r)) != sizeof(r) || read(last, &r, sizeof(r)) != sizeof(r))
		die("the ring is broken");
	if (r.wrong >= 0)
		dprintf(connection, "page %ld differs\n", (long)r.wrong);
	else if (r.what == 'r')
		dprintf(connection, "%lu\n", (unsigned long)r.steps);
	else
		dprintf(connection, "ok\n");
}

static void run(size_t mib)
{
	int pipes[PROCESSES][2], listener = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un a = address();

	for (int i = 0; i < PROCESSES; i++)
		if (pipe(pipes[i]))
			die("pipe");
	for (int i = 1; i < PROCESSES; i++) {
		if (fork())
			continue;
		start_memory(mib / PROCESSES);
		pass(pipes[i - 1][0], pipes[i][1]);
	}
	start_memory(mib / PROCESSES);
	unlink(SOCKET);
	if (bind(listener, (void *)&a, sizeof(a)) || listen(listener, 4))
		die(SOCKET);
	while (1) {
		int connection = accept(listener, NULL, NULL);

		if (connection < 0)
			die("accept");
		answer(connection, pipes[0][1], pipes[PROCESSES - 1][0]);
		close(connection);
	}
}

static int ask(int argc, char **argv)
{
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un a = address();
	char text[256] = "";
	ssize_t n;

	for (int i = 0; i < argc; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", argv[i]);
	/* In one piece: the other side reads once. */
	if (connect(s, (void *)&a, sizeof(a)) || write(s, text, strlen(text)) != (ssize_t)strlen(text))
		die(SOCKET);
	while ((n = read(s, text, sizeof(text))) > 0)
		if (write(1, text, n) != n)
			die("write");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "ask"))
		return ask(argc - 2, argv + 2);
	if (argc != 2)
		return 2;
	run(strtoul(argv[1], NULL, 10));
}
