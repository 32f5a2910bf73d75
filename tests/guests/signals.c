/* SPDX-License-Identifier: Apache-2.0 */
/* Pending signals with their values (process-wide and of one thread), handlers, masks, an alternate stack. */
#include <pthread.h>

#include "guest.h"

static pthread_t thread;
static pid_t tid;
static volatile sig_atomic_t handled, on_alternate;
static char alternate[65536];
static pthread_barrier_t start, end;
static int thread_value;

static void handler(int signal, siginfo_t *info, void *context)
{
	char here;

	(void)signal;
	(void)context;
	handled = info->si_value.sival_int;
	on_alternate = &here > alternate && &here < alternate + sizeof(alternate);
}

static void *run(void *argument)
{
	const struct timespec now = {0};
	siginfo_t info;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 2);
	tid = (pid_t)syscall(SYS_gettid);
	pthread_barrier_wait(&end);
	for (;;) {
		pthread_barrier_wait(&start);
		thread_value = sigtimedwait(&set, &info, &now) == SIGRTMIN + 2 ? info.si_value.sival_int : -1;
		pthread_barrier_wait(&end);
	}
	return argument;
}

void guest_setup(void)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	stack_t stack = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
	sigset_t set;

	CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGRTMIN + 1, &action, NULL) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	sigaddset(&set, SIGRTMIN + 2);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	pthread_barrier_init(&start, NULL, 2);
	pthread_barrier_init(&end, NULL, 2);
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	pthread_barrier_wait(&end);
}

void guest_put(const char *tag)
{
	CHECK(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = tag[0]}) == 0);
	CHECK(pthread_sigqueue(thread, SIGRTMIN + 2, (union sigval){.sival_int = tag[0] + 1}) == 0);
}

void guest_check(const char *tag)
{
	sigset_t pending, set;

	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGRTMIN + 1) && !sigismember(&pending, SIGRTMIN + 2));
	handled = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	CHECK(handled == tag[0] && on_alternate);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&end);
	CHECK(thread_value == tag[0] + 1);
}
