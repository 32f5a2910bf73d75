/* SPDX-License-Identifier: Apache-2.0 */
/* A file mapped before a fork(), by parent, children and a grandchild: each has what it made of the mapping since. */
#include <sys/prctl.h>

#include "guest.h"

#define PAGE 4096
#define PAGES 64
#define KIN 5

static char *area;
static int ask[KIN][2], answer[KIN][2];

static void fill(int fd)
{
	char page[PAGE];

	for (int i = 0; i < PAGES; i++) {
		memset(page, 'A' + i % 26, sizeof(page));
		CHECK(write(fd, page, sizeof(page)) == sizeof(page));
	}
}

static char *at(int page)
{
	return area + page * PAGE;
}

/* The rights of each page of the area, as /proc tells; a page that is written to may have left its file's mapping. */
static void describe(char rights[PAGES][5])
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], found[5];

	CHECK(maps);
	memset(rights, 0, PAGES * sizeof(*rights));
	while (fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		CHECK(sscanf(line, "%lx-%lx %4s", &start, &end, found) == 3);
		for (int i = 0; i < PAGES; i++)
			if ((unsigned long)at(i) >= start && (unsigned long)at(i) < end)
				strcpy(rights[i], found);
	}
	fclose(maps);
}

static void map(int page, int rights, int fd, int from)
{
	CHECK(mmap(at(page), 4 * PAGE, rights, MAP_PRIVATE | MAP_FIXED, fd, from * PAGE) == at(page));
}

/* Each of the kin differs from its parent in another way; in their first pages they do not. */
static void differ(int who, int fd)
{
	int other = open("/guest/family.other", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(other >= 0 && ftruncate(other, PAGES * PAGE) == 0);
	switch (who) {
	case 1:
		memset(at(8), 'w', PAGE);
		memset(at(11), 'w', PAGE);
		break;
	case 2:
		/* A neighbour with the same rights: one longer mapping. */
		CHECK(mprotect(at(12), 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
		CHECK(munmap(at(20), 4 * PAGE) == 0);
		map(24, PROT_READ | PROT_WRITE | PROT_EXEC, fd, 0);
		break;
	case 3:
		CHECK(mprotect(at(30), 2 * PAGE, PROT_READ) == 0);
		map(32, PROT_READ | PROT_WRITE | PROT_EXEC, other, 32);
		break;
	case 4:
		CHECK(mprotect(at(40), 4 * PAGE, PROT_NONE) == 0);
		CHECK(mprotect(at(52), 4 * PAGE, PROT_READ | PROT_EXEC) == 0);
		break;
	default:
		CHECK(munmap(at(60), 4 * PAGE) == 0);
	}
	close(other);
}

/* A sum over what can be read. */
static unsigned long sum(char rights[PAGES][5])
{
	unsigned long found = 0;

	for (int i = 0; i < PAGES; i++)
		for (int k = 0; rights[i][0] == 'r' && k < PAGE; k++)
			found = found * 31 + (unsigned char)at(i)[k];
	return found;
}

/* Says, when asked, whether all is as it was. */
static void serve(int who)
{
	char before[PAGES][5], now[PAGES][5];
	unsigned long wanted;
	char byte;

	describe(before);
	wanted = sum(before);
	CHECK(write(answer[who][1], "!", 1) == 1);
	while (read(ask[who][0], &byte, 1) == 1) {
		describe(now);
		byte = memcmp(before, now, sizeof(now)) ? 'm' : sum(now) == wanted ? 'y' : 'c';
		if (byte == 'y' && who == 1) {
			/* From here on its own. */
			*at(8) ^= 1;
			*at(9) ^= 1;
			wanted = sum(before);
		}
		CHECK(write(answer[who][1], &byte, 1) == 1);
	}
	_exit(0);
}

static void breed(int who, int fd)
{
	char byte;

	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		differ(who, fd);
		if (who == 3)
			breed(4, fd);
		close(fd);
		serve(who);
	}
	CHECK(read(answer[who][0], &byte, 1) == 1);
}

void guest_setup(void)
{
	int fd = open("/guest/family.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	fill(fd);
	/* In pieces, as a program's segments are; with room before and behind. */
	area = mmap(NULL, (PAGES + 32) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(area != MAP_FAILED);
	area += 16 * PAGE;
	for (int i = 0; i < PAGES; i += 4)
		map(i, i % 8 ? PROT_READ | PROT_WRITE : PROT_READ | PROT_WRITE | PROT_EXEC, fd, i);
	memset(at(4), 'p', PAGE);
	for (int i = 0; i < KIN; i++)
		CHECK(pipe(ask[i]) == 0 && pipe(answer[i]) == 0);
	for (int i = 1; i < KIN - 1; i++)
		breed(i, fd);
	differ(0, fd);
	close(fd);
}

void guest_put(const char *tag)
{
	strcpy(at(5), tag);
}

void guest_check(const char *tag)
{
	char byte;

	CHECK_TAG(at(5), tag);
	for (int i = 1; i < KIN; i++) {
		CHECK(write(ask[i][1], "?", 1) == 1);
		CHECK(read(answer[i][0], &byte, 1) == 1);
		if (byte != 'y')
			FAIL("process %d: its %s", i, byte == 'm' ? "mappings are others" : "pages have changed");
	}
	CHECK(*at(0) == 'A' && *at(4) == 'p' && *at(8) == 'A' + 8 && *at(20) == 'A' + 20);
}
