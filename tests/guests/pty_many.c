/* SPDX-License-Identifier: Apache-2.0 */
/* Terminals with gaps in their numbers: each keeps its own, new ones take free ones, bytes and modes stay apart. */
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "guest.h"

enum { MADE = 9, GAP_A = 2, GAP_B = 5 };

static int masters[MADE], slaves[MADE];
static unsigned int numbers[MADE];

static unsigned int number_of(int master)
{
	unsigned int number;

	CHECK(ioctl(master, TIOCGPTN, &number) == 0);
	return number;
}

static void open_pair(int *master, int *slave)
{
	struct termios raw;

	CHECK(openpty(master, slave, NULL, NULL, NULL) == 0);
	CHECK(tcgetattr(*slave, &raw) == 0);
	cfmakeraw(&raw);
	CHECK(tcsetattr(*slave, TCSANOW, &raw) == 0);
}

static int is_gap(int i)
{
	return i == GAP_A || i == GAP_B;
}

void guest_setup(void)
{
	for (int i = 0; i < MADE; i++) {
		open_pair(&masters[i], &slaves[i]);
		numbers[i] = number_of(masters[i]);
	}
	for (int i = 0; i < MADE; i++)
		if (is_gap(i)) {
			close(masters[i]);
			close(slaves[i]);
		}
	/* One is hung up, with its slave still open. */
	close(masters[MADE - 1]);
}

/* Bytes that wait in both directions are part of the tag. */
void guest_put(const char *tag)
{
	for (int i = 0; i < MADE - 1; i++)
		if (!is_gap(i)) {
			dprintf(masters[i], "%s-%d>", tag, i);
			dprintf(slaves[i], "%s-%d<", tag, i);
		}
}

static void take(int fd, const char *tag, int i, char end)
{
	char have[TAG_SIZE * 2], wanted[TAG_SIZE * 2];
	ssize_t n = read(fd, have, sizeof(have) - 1);

	CHECK(n > 0);
	have[n] = 0;
	snprintf(wanted, sizeof(wanted), "%s-%d%c", tag, i, end);
	CHECK_TAG(have, wanted);
}

/* A new terminal gets a number that nobody has, and works. */
static void open_new(const char *tag)
{
	int master, slave;
	char name[64];

	open_pair(&master, &slave);
	CHECK(ptsname_r(master, name, sizeof(name)) == 0 && access(name, R_OK | W_OK) == 0);
	for (int i = 0; i < MADE; i++)
		CHECK(is_gap(i) || i == MADE - 1 || number_of(master) != numbers[i]);
	dprintf(master, "%s-%d>", tag, -1);
	take(slave, tag, -1, '>');
	close(master);
	close(slave);
}

void guest_check(const char *tag)
{
	struct termios now;
	char byte;

	for (int i = 0; i < MADE - 1; i++) {
		if (is_gap(i))
			continue;
		CHECK(number_of(masters[i]) == numbers[i]);
		CHECK(tcgetattr(slaves[i], &now) == 0 && !(now.c_lflag & (ICANON | ECHO)));
		take(slaves[i], tag, i, '>');
		take(masters[i], tag, i, '<');
	}
	CHECK(read(slaves[MADE - 1], &byte, 1) == 0);
	open_new(tag);
}
