/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * A guest holds one kind of kernel resource. Its resource carries a tag: the guest puts the tag in,
 * and later checks that it is still there, and no other. Source and branches are given different tags,
 * so each side must find what it had at the fork and, from then on, only what it put itself.
 *
 *   setup, put "origin" -> "ready" | for each tag sent to go: check the last tag, put the new one -> "ok"
 *
 * The FIFOs /guest/ready, /guest/go and /guest/result are made by the test. A failed
 * check is written to the result FIFO instead of "ok".
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void guest_setup(void);
void guest_put(const char *tag);
void guest_check(const char *tag);

#define TAG_SIZE 32

static inline void guest_say(const char *fifo, const char *text)
{
	int fd = open(fifo, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		_exit(3);
	close(fd);
}

__attribute__((format(printf, 3, 4), noreturn)) static inline void guest_fail(
	const char *file, int line, const char *fmt, ...)
{
	char what[256], text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	snprintf(text, sizeof(text), "%s:%d: %s (errno %d %s)\n", file, line, what, errno, strerror(errno));
	guest_say("/guest/result", text);
	_exit(1);
}

#define FAIL(...) guest_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		if (!(condition))                                                                                      \
			FAIL("%s", #condition);                                                                        \
	} while (0)
#define CHECK_TAG(have, tag)                                                                                           \
	do {                                                                                                           \
		if (strcmp(have, tag))                                                                                 \
			FAIL("found \"%s\", expected \"%s\"", have, tag);                                              \
	} while (0)

static inline void guest_read_tag(int fd, char tag[TAG_SIZE])
{
	ssize_t n = read(fd, tag, TAG_SIZE - 1);

	CHECK(n > 0);
	tag[n] = 0;
	tag[strcspn(tag, "\n")] = 0;
}

static inline void guest_write_tag(int fd, const char *tag)
{
	CHECK(write(fd, tag, strlen(tag)) == (ssize_t)strlen(tag));
}

/* The test may still hold the FIFO open from its last message: an end of file is no message. */
static void guest_wait(char tag[TAG_SIZE])
{
	ssize_t n;

	do {
		int go = open("/guest/go", O_RDONLY | O_CLOEXEC);

		CHECK(go >= 0);
		n = read(go, tag, TAG_SIZE - 1);
		CHECK(n >= 0);
		close(go);
	} while (n == 0);
	tag[n] = 0;
	tag[strcspn(tag, "\n")] = 0;
}

int main(void)
{
	char tag[TAG_SIZE] = "origin", next[TAG_SIZE];

	guest_setup();
	guest_put(tag);
	guest_say("/guest/ready", "ready\n");
	for (;;) {
		guest_wait(next);
		guest_check(tag);
		guest_put(next);
		guest_check(next);
		guest_put(next);
		strcpy(tag, next);
		guest_say("/guest/result", "ok\n");
	}
}
