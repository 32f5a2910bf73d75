/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one system call, given by number and arguments, and prints "ok" or the name of its error. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long arguments[6] = { 0 };
	long answer;

	if (argc < 2 || argc > 8)
		return 2;
	for (int i = 2; i < argc; i++)
		arguments[i - 2] = strtol(argv[i], NULL, 0);
	answer = syscall(strtol(argv[1], NULL, 0), arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
		arguments[5]);
	if (answer < 0)
		puts(strerrorname_np(errno));
	else
		puts("ok");
	return 0;
}
