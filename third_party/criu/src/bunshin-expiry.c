// SPDX-License-Identifier: GPL-2.0-only
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "bunshin-expiry.h"
#include "images/core.pb-c.h"

#define SECOND 1000000000ull

static uint64_t began;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

void bunshin_timers_begin(void)
{
	began = now();
}

typedef bool (*is_from)(const siginfo_t *info, const void *timer);

static bool from_posix_timer(const siginfo_t *info, const void *timer)
{
	return info->si_code == SI_TIMER && info->si_timerid == (int)((const PosixTimerEntry *)timer)->it_id;
}

static bool from_alarm(const siginfo_t *info, const void *timer)
{
	return info->si_signo == SIGALRM && info->si_code == SI_KERNEL;
}

static bool in_queue(const SignalQueueEntry *queue, is_from match, const void *timer)
{
	for (size_t i = 0; queue && i < queue->n_signals; i++)
		if (match((const siginfo_t *)queue->signals[i]->siginfo.data, timer))
			return true;
	return false;
}

static bool pending(const struct pstree_item *item, is_from match, const void *timer)
{
	for (int i = 0; i < item->nr_threads; i++)
		if (in_queue(item->core[i]->thread_core->signals_p, match, timer))
			return true;
	return in_queue(item->core[0]->tc->signals_s, match, timer);
}

/* What is left once @left has run out, for a timer that comes again after @interval. */
static uint64_t next(uint64_t left, uint64_t interval)
{
	return interval ? left + interval : 0;
}

void bunshin_timers_expired(struct pstree_item *item)
{
	TaskTimersEntry *timers = item->core[0]->tc->timers;
	const uint64_t took = now() - began;
	ItimerEntry *alarm = timers->real;
	uint64_t left;

	for (size_t i = 0; i < timers->n_posix; i++) {
		PosixTimerEntry *timer = timers->posix[i];

		left = timer->vsec * SECOND + timer->vnsec;
		if (left && left <= took && pending(item, from_posix_timer, timer)) {
			left = next(left, timer->isec * SECOND + timer->insec);
			timer->vsec = left / SECOND;
			timer->vnsec = left % SECOND;
		}
	}
	left = alarm->vsec * SECOND + alarm->vusec * 1000;
	if (left && left <= took && pending(item, from_alarm, alarm)) {
		left = next(left, alarm->isec * SECOND + alarm->iusec * 1000);
		alarm->vsec = left / SECOND;
		alarm->vusec = left % SECOND / 1000;
	}
}
