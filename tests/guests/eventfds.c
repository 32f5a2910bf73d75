/* SPDX-License-Identifier: Apache-2.0 */
/* eventfd, signalfd, timerfd and an epoll set over them, nested in another. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "guest.h"

static int counter, signals, timer, inner, outer;

static void watch(int set, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};

	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

void guest_setup(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	counter = eventfd(0, EFD_NONBLOCK);
	signals = signalfd(-1, &set, SFD_NONBLOCK);
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	inner = epoll_create1(0);
	outer = epoll_create1(EPOLL_CLOEXEC);
	CHECK(counter >= 0 && signals >= 0 && timer >= 0 && inner >= 0 && outer >= 0);
	watch(inner, counter);
	watch(inner, signals);
	watch(outer, inner);
}

void guest_put(const char *tag)
{
	struct itimerspec once = {.it_value = {.tv_nsec = 1000000}}, now;
	uint64_t value = (uint64_t)tag[0];

	CHECK(write(counter, &value, 8) == 8);
	CHECK(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = tag[0]}) == 0);
	/* Expired, not read: the expiry must be there afterwards. */
	CHECK(timerfd_settime(timer, 0, &once, NULL) == 0);
	do
		CHECK(timerfd_gettime(timer, &now) == 0);
	while (now.it_value.tv_nsec);
}

void guest_check(const char *tag)
{
	struct epoll_event events[4];
	struct signalfd_siginfo info;
	uint64_t value;

	CHECK(epoll_wait(outer, events, 4, 0) == 1 && events[0].data.fd == inner);
	CHECK(epoll_wait(inner, events, 4, 0) == 2);
	CHECK(read(counter, &value, 8) == 8 && value == (uint64_t)tag[0]);
	CHECK(read(signals, &info, sizeof(info)) == sizeof(info));
	CHECK(info.ssi_signo == SIGUSR1 && info.ssi_int == tag[0]);
	CHECK(read(timer, &value, 8) == 8 && value == 1);
	CHECK(epoll_wait(outer, events, 4, 0) == 0);
}
