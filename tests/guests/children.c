/* SPDX-License-Identifier: Apache-2.0 */
/* A process tree with memory shared copy-on-write, a new fork in it after the fork, and exits that are reported. */
#include "guest.h"

static char *memory;
static int ask[2], answer[2];

static void serve(void)
{
	char wanted[TAG_SIZE], text[TAG_SIZE];
	int status;
	ssize_t n;

	while ((n = read(ask[0], wanted, sizeof(wanted))) == sizeof(wanted)) {
		pid_t pid = fork();

		if (pid == 0) {
			/* The page as it was when this process came from its parent; then it is ours alone. */
			int same = !strcmp(memory, "before");

			strcpy(memory, wanted);
			_exit(same && !strcmp(memory, wanted) ? 42 : 1);
		}
		waitpid(pid, &status, 0);
		snprintf(text, sizeof(text), "%d %s", WEXITSTATUS(status), memory);
		if (write(answer[1], text, sizeof(text)) != sizeof(text))
			_exit(1);
	}
	_exit(0);
}

void guest_setup(void)
{
	memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && pipe(ask) == 0 && pipe(answer) == 0);
	strcpy(memory, "before");
	if (fork() == 0)
		serve();
}

void guest_put(const char *tag)
{
	strcpy(memory, tag);
}

void guest_check(const char *tag)
{
	char wanted[TAG_SIZE] = "", text[TAG_SIZE];

	CHECK_TAG(memory, tag);
	strcpy(wanted, tag);
	CHECK(write(ask[1], wanted, sizeof(wanted)) == sizeof(wanted));
	CHECK(read(answer[0], text, sizeof(text)) == sizeof(text));
	CHECK_TAG(text, "42 before");
	CHECK_TAG(memory, tag);
}
