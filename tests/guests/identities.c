/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of another user: ids, groups, no capabilities, and files that they may not read. */
#include <grp.h>
#include <sys/prctl.h>

#include "guest.h"

static int ask[2], answer[2];

static void serve(void)
{
	const gid_t groups[] = {2001, 2002};
	gid_t have[4];
	char tag[TAG_SIZE];

	if (setgroups(2, groups) < 0 || setresgid(1000, 1001, 1001) < 0 || setresuid(1000, 1001, 1002) < 0)
		_exit(1);
	while (read(ask[0], tag, sizeof(tag)) == sizeof(tag)) {
		uid_t r, e, s;
		gid_t rg, eg, sg;
		int good = getresuid(&r, &e, &s) == 0 && r == 1000 && e == 1001 && s == 1002;

		good &= getresgid(&rg, &eg, &sg) == 0 && rg == 1000 && eg == 1001 && sg == 1001;
		good &= getgroups(4, have) == 2 && have[0] == 2001 && have[1] == 2002;
		good &= open("/guest-secret", O_RDONLY) < 0 && errno == EACCES;
		strcpy(tag + TAG_SIZE - 2, good ? "y" : "n");
		if (write(answer[1], tag, sizeof(tag)) != sizeof(tag))
			_exit(1);
	}
	_exit(0);
}

void guest_setup(void)
{
	int fd = open("/guest-secret", O_WRONLY | O_CREAT, 0600);

	CHECK(fd >= 0 && pipe(ask) == 0 && pipe(answer) == 0);
	close(fd);
	if (fork() == 0)
		serve();
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	char text[TAG_SIZE] = "", back[TAG_SIZE];

	strncpy(text, tag, TAG_SIZE - 3);
	CHECK(write(ask[1], text, sizeof(text)) == sizeof(text));
	CHECK(read(answer[0], back, sizeof(back)) == sizeof(back));
	CHECK(back[TAG_SIZE - 2] == 'y');
	CHECK_TAG(back, text);
}
