/* SPDX-License-Identifier: Apache-2.0 */
/* Many timers run out, some while their process is being recorded: each of them signals once. */
#include <stdbool.h>
#include <time.h>

#include "guest.h"

#define TIMERS 1000
#define APART 400000 /* nanoseconds */

static timer_t timers[TIMERS];
static sigset_t set;

void guest_setup(void)
{
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	for (int i = 0; i < TIMERS; i++) {
		struct sigevent event = {
			.sigev_notify = SIGEV_SIGNAL,
			.sigev_signo = SIGRTMIN,
			.sigev_value.sival_int = i,
		};

		CHECK(timer_create(CLOCK_MONOTONIC, &event, &timers[i]) == 0);
	}
}

void guest_put(const char *tag)
{
	(void)tag;
	for (int i = 0; i < TIMERS; i++) {
		const long left = (i + 1) * (long)APART;
		const struct itimerspec once = {.it_value = {left / 1000000000, left % 1000000000}};

		CHECK(timer_settime(timers[i], 0, &once, NULL) == 0);
	}
}

void guest_check(const char *tag)
{
	const struct timespec limit = {.tv_sec = 20}, none = {0};
	bool came[TIMERS] = {0};
	siginfo_t info;

	(void)tag;
	for (int i = 0; i < TIMERS; i++) {
		if (sigtimedwait(&set, &info, &limit) != SIGRTMIN)
			FAIL("%d of %d timers signalled", i, TIMERS);
		CHECK(info.si_code == SI_TIMER && info.si_value.sival_int < TIMERS);
		if (came[info.si_value.sival_int])
			FAIL("timer %d signalled twice", info.si_value.sival_int);
		came[info.si_value.sival_int] = true;
	}
	CHECK(sigtimedwait(&set, &info, &none) == -1 && errno == EAGAIN);
}
