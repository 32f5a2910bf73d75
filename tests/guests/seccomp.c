/* SPDX-License-Identifier: Apache-2.0 */
/* A child with a system call filter of its own, besides the workspace's: it must bind as before. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "guest.h"

static int ask[2], answer[2];

static void serve(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = code};
	char byte;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		_exit(1);
	while (read(ask[0], &byte, 1) == 1) {
		errno = 0;
		byte = syscall(SYS_getpgid, 0) < 0 && errno == 77 ? 'y' : 'n';
		if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
			byte = 'p';
		if (write(answer[1], &byte, 1) != 1)
			_exit(1);
	}
	_exit(0);
}

void guest_setup(void)
{
	CHECK(pipe(ask) == 0 && pipe(answer) == 0);
	if (fork() == 0)
		serve();
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	char byte;

	(void)tag;
	CHECK(write(ask[1], "x", 1) == 1);
	CHECK(read(answer[0], &byte, 1) == 1 && byte == 'y');
	CHECK(getpgid(0) >= 0);
}
