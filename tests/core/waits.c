/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits DIRECTORY MILLISECONDS: one process for each kind of wait, where both the first thread and another one wait
 * that way. Each writes DIRECTORY/KIND-first or KIND-other when its wait ends:
 *
 *   ANSWER ERRNO WAITED_MS ENDED_MS	(ENDED_MS by the monotonic clock)
 *
 * A wait that ends too soon, or with an error, shows there; waits that end by an event get theirs after the time.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *directory;
static long wait_ms;

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct timespec in_ms(long ms)
{
	return (struct timespec){ms / 1000, ms % 1000 * 1000000};
}

static struct timespec until(void)
{
	return in_ms(now_ms() + wait_ms + 1);
}

static long wait_nanosleep(void)
{
	struct timespec t = in_ms(wait_ms);

	return syscall(SYS_nanosleep, &t, NULL);
}

static long wait_nanosleep_in_place(void)
{
	struct timespec t = in_ms(wait_ms);

	return syscall(SYS_nanosleep, &t, &t);
}

static long wait_clock_nanosleep(void)
{
	struct timespec t = in_ms(wait_ms), left;

	return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, &left);
}

static long wait_until(void)
{
	struct timespec t = until();

	return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static long wait_poll(void)
{
	struct pollfd none = {.fd = -1};

	return syscall(SYS_poll, &none, 1, (int)wait_ms);
}

static long wait_ppoll(void)
{
	struct timespec t = in_ms(wait_ms);

	return syscall(SYS_ppoll, NULL, 0, &t, NULL, 0);
}

static long wait_select(void)
{
	struct timeval t = {wait_ms / 1000, wait_ms % 1000 * 1000};

	return syscall(SYS_select, 0, NULL, NULL, NULL, &t);
}

static long wait_pselect(void)
{
	struct timespec t = in_ms(wait_ms);

	return syscall(SYS_pselect6, 0, NULL, NULL, NULL, &t, NULL);
}

/* A futex that no one wakes: the end of the time is the good answer. */
static long timed_out(long answer)
{
	return answer < 0 && errno == ETIMEDOUT ? 0 : answer ? answer : -2;
}

static long wait_futex(void)
{
	struct timespec t = in_ms(wait_ms);
	int word = 0;

	return timed_out(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0));
}

static long wait_futex_until(void)
{
	struct timespec t = until();
	int word = 0;

	return timed_out(syscall(
		SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &t, NULL, (unsigned int)FUTEX_BITSET_MATCH_ANY));
}

static int timer(void)
{
	struct itimerspec spec = {.it_value = in_ms(wait_ms + 1)};
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

	timerfd_settime(fd, 0, &spec, NULL);
	return fd;
}

static long wait_epoll(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	epoll_ctl(epoll, EPOLL_CTL_ADD, timer(), &event);
	return syscall(SYS_epoll_wait, epoll, &event, 1, -1) == 1 ? 0 : -1;
}

static long wait_epoll_masked(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	unsigned long mask = 0;

	epoll_ctl(epoll, EPOLL_CTL_ADD, timer(), &event);
	return syscall(SYS_epoll_pwait, epoll, &event, 1, -1, &mask, sizeof(mask)) == 1 ? 0 : -1;
}

static long wait_read(void)
{
	unsigned long long times;

	return read(timer(), &times, sizeof(times)) == sizeof(times) ? 0 : -1;
}

/* Another process gives what is waited for. */
static long wait_semaphore(void)
{
	struct sembuf take = {.sem_op = -1}, give = {.sem_op = 1};
	int set = semget(IPC_PRIVATE, 1, 0600);
	pid_t giver = fork();
	long answer;

	if (!giver) {
		wait_until();
		_exit(semop(set, &give, 1) ? 1 : 0);
	}
	answer = syscall(SYS_semop, set, &take, 1L);
	waitpid(giver, NULL, 0);
	return answer;
}

static long wait_signal(void)
{
	struct itimerspec spec = {.it_value = in_ms(wait_ms + 1)};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
	sigset_t set;
	timer_t id;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	timer_create(CLOCK_MONOTONIC, &event, &id);
	timer_settime(id, 0, &spec, NULL);
	return syscall(SYS_rt_sigtimedwait, &set, NULL, NULL, sizeof(unsigned long)) == SIGUSR2 ? 0 : -1;
}

static void note(int signo)
{
	(void)signo;
}

/* For ever, until SIGUSR1: that must still end a wait. */
static long wait_interrupted(void)
{
	struct timespec t = in_ms(1000000000);

	return syscall(SYS_nanosleep, &t, NULL);
}

static const struct kind {
	const char *name;
	long (*wait)(void);
} kinds[] = {
	{"nanosleep", wait_nanosleep},
	{"nanosleep_in_place", wait_nanosleep_in_place},
	{"clock_nanosleep", wait_clock_nanosleep},
	{"until", wait_until},
	{"poll", wait_poll},
	{"ppoll", wait_ppoll},
	{"select", wait_select},
	{"pselect", wait_pselect},
	{"futex", wait_futex},
	{"futex_until", wait_futex_until},
	{"epoll", wait_epoll},
	{"epoll_masked", wait_epoll_masked},
	{"read", wait_read},
	{"semaphore", wait_semaphore},
	{"signal", wait_signal},
	{"interrupted", wait_interrupted},
};

static void wait_and_tell(const struct kind *kind, const char *thread)
{
	char name[256], hidden[280], text[128];
	long start = now_ms(), answer, end;
	int saved, fd;

	errno = 0;
	answer = kind->wait();
	saved = errno;
	end = now_ms();
	snprintf(name, sizeof(name), "%s/%s-%s", directory, kind->name, thread);
	snprintf(hidden, sizeof(hidden), "%s.part", name);
	snprintf(text, sizeof(text), "%ld %d %ld %ld\n", answer, answer ? saved : 0, end - start, end);
	fd = open(hidden, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0 || rename(hidden, name))
		_exit(1);
	close(fd);
}

static void *other(void *kind)
{
	wait_and_tell(kind, "other");
	return NULL;
}

static void run(const struct kind *kind)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, other, (void *)kind))
		_exit(1);
	wait_and_tell(kind, "first");
	pthread_join(thread, NULL);
	pause();
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};

	if (argc != 3)
		return 2;
	directory = argv[1];
	wait_ms = atol(argv[2]);
	sigaction(SIGUSR1, &action, NULL);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!fork())
			run(&kinds[i]);
	while (wait(NULL) > 0 || errno == EINTR)
		;
	return 0;
}
