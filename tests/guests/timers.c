/* SPDX-License-Identifier: Apache-2.0 */
/* Armed timers keep what is left of them and fire; clocks go on from where they were. */
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

#include "guest.h"

static timer_t posix_timer;
static int far;
static struct timespec last;

void guest_setup(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
	struct itimerval interval = {.it_interval = {3000, 0}, .it_value = {3000, 0}};
	struct itimerspec hours = {.it_interval = {7200, 0}, .it_value = {7200, 0}};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &posix_timer) == 0);
	CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
	far = timerfd_create(CLOCK_MONOTONIC, 0);
	CHECK(timerfd_settime(far, 0, &hours, NULL) == 0);
	clock_gettime(CLOCK_MONOTONIC, &last);
}

void guest_put(const char *tag)
{
	struct itimerspec once = {.it_value = {.tv_nsec = 50000000}};

	(void)tag;
	CHECK(timer_settime(posix_timer, 0, &once, NULL) == 0);
}

void guest_check(const char *tag)
{
	const struct timespec limit = {.tv_sec = 20};
	struct itimerval interval;
	struct itimerspec hours;
	struct timespec now;
	siginfo_t info;
	sigset_t set;

	(void)tag;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(sigtimedwait(&set, &info, &limit) == SIGUSR2 && info.si_code == SI_TIMER);
	CHECK(getitimer(ITIMER_REAL, &interval) == 0 && interval.it_interval.tv_sec == 3000);
	CHECK(interval.it_value.tv_sec > 2000 && interval.it_value.tv_sec <= 3000);
	CHECK(timerfd_gettime(far, &hours) == 0 && hours.it_interval.tv_sec == 7200 && hours.it_value.tv_sec > 6000);
	clock_gettime(CLOCK_MONOTONIC, &now);
	CHECK(now.tv_sec >= last.tv_sec && now.tv_sec - last.tv_sec < 600);
	last = now;
}
