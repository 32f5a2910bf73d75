/* SPDX-License-Identifier: Apache-2.0 */
#include "pump.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"

static void finish(struct bsh_pump *pump, int stream)
{
	bsh_close_fd(&pump->fds[stream]);
	pump->fds[stream] = -1;
}

/* write() that answers EPIPE without a signal, whatever the program does about SIGPIPE. */
static ssize_t write_quietly(int fd, const void *bytes, size_t len)
{
	const struct timespec now = {0};
	sigset_t pipe_signal, before;
	ssize_t n;
	int code;

	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
	n = write(fd, bytes, len);
	code = errno;
	if (n < 0 && code == EPIPE && !sigismember(&before, SIGPIPE))
		sigtimedwait(&pipe_signal, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = code;
	return n;
}

static void feed(struct bsh_pump *pump)
{
	while (pump->input_len) {
		ssize_t n = write_quietly(pump->fds[0], pump->input, pump->input_len);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0) /* a command need not read its input */
			break;
		pump->input += n;
		pump->input_len -= (unsigned long long)n;
	}
	finish(pump, 0);
}

/* Reads until the pipe is empty or ends. Beyond the limit it is read and forgotten, so that the command can go on. */
static void gather(struct bsh_pump *pump, int stream)
{
	struct bsh_buffer *output = &pump->outputs[stream - 1];
	char chunk[65536];

	/* A bounded number of rounds: a command that writes without end must not keep us from looking at the clock. */
	for (int round = 0; round < 64; round++) {
		ssize_t n = read(pump->fds[stream], chunk, sizeof(chunk));
		unsigned long long room = pump->output_max - output->len;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			finish(pump, stream);
			return;
		}
		if ((unsigned long long)n > room) {
			pump->truncated = true;
			n = (ssize_t)room;
		}
		bsh_buffer_add(output, chunk, (size_t)n);
	}
}

void bsh_pump_drain(struct bsh_pump *pump)
{
	for (int stream = 1; stream < 3; stream++)
		if (pump->fds[stream] >= 0)
			gather(pump, stream);
}

static int poll_ms(long long timeout_ms, long long deadline)
{
	long long left;

	if (timeout_ms < 0)
		return -1;
	left = (deadline - bsh_now_ns() + 999999) / 1000000;
	return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

int bsh_pump_run(struct bsh_pump *pump, long long timeout_ms, struct bsh_error *err)
{
	long long deadline = bsh_now_ns() + (timeout_ms > 0 ? timeout_ms : 0) * 1000000LL;

	if (!pump->input_len)
		finish(pump, 0);
	for (;;) {
		struct pollfd fds[] = {
			{.fd = pump->fds[0], .events = POLLOUT},
			{.fd = pump->fds[1], .events = POLLIN},
			{.fd = pump->fds[2], .events = POLLIN},
			{.fd = pump->pidfd, .events = POLLIN},
		};
		int wait_ms = poll_ms(timeout_ms, deadline);
		int n = poll(fds, 4, wait_ms);

		if (n < 0 && errno != EINTR)
			return bsh_fail(err, errno, "wait for the command");
		if (n > 0 && fds[0].revents)
			feed(pump);
		for (int stream = 1; n > 0 && stream < 3; stream++)
			if (fds[stream].revents)
				gather(pump, stream);
		if (n > 0 && fds[3].revents) {
			bsh_pump_drain(pump);
			return 0;
		}
		if (wait_ms == 0)
			return -ETIMEDOUT;
	}
}

void bsh_pump_close(struct bsh_pump *pump)
{
	for (int stream = 0; stream < 3; stream++)
		if (pump->fds[stream] >= 0)
			finish(pump, stream);
}
