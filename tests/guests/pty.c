/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal: a child's session and controlling terminal, settings, size, foreground group; bytes pass both ways. */
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "guest.h"

static int master;
static char name[64];

static void child(int slave)
{
	char line[TAG_SIZE];

	setsid();
	if (ioctl(slave, TIOCSCTTY, 0) < 0 || tcsetpgrp(slave, getpid()) < 0)
		_exit(1);
	close(master);
	for (;;) {
		ssize_t n = read(slave, line, sizeof(line) - 1);

		if (n <= 0)
			_exit(2);
		line[n] = 0;
		dprintf(slave, "%d:%s", tcgetpgrp(slave) == getpid(), line);
	}
}

void guest_setup(void)
{
	struct winsize size = {.ws_row = 33, .ws_col = 101};
	struct termios settings;
	int slave;

	CHECK(openpty(&master, &slave, name, NULL, &size) == 0);
	CHECK(tcgetattr(slave, &settings) == 0);
	settings.c_lflag &= ~(tcflag_t)ECHO;
	settings.c_oflag &= ~(tcflag_t)OPOST;
	CHECK(tcsetattr(slave, TCSANOW, &settings) == 0);
	if (fork() == 0)
		child(slave);
	close(slave);
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	char now[64], wanted[TAG_SIZE + 8], have[TAG_SIZE + 8];
	struct termios settings;
	struct winsize size;
	ssize_t n;

	CHECK(ptsname_r(master, now, sizeof(now)) == 0);
	CHECK_TAG(now, name);
	CHECK(ioctl(master, TIOCGWINSZ, &size) == 0 && size.ws_row == 33 && size.ws_col == 101);
	CHECK(tcgetattr(master, &settings) == 0 && !(settings.c_lflag & ECHO) && !(settings.c_oflag & OPOST));
	CHECK(dprintf(master, "%s\n", tag) > 0);
	snprintf(wanted, sizeof(wanted), "1:%s\n", tag);
	n = read(master, have, sizeof(have) - 1);
	CHECK(n > 0);
	have[n] = 0;
	CHECK_TAG(have, wanted);
}
