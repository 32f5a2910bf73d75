/* SPDX-License-Identifier: Apache-2.0 */
/* Open files without a name: unlinked, unlinked with another link left, replaced by rename, never named, a removed
 * directory. */
#include "guest.h"

static int unlinked, other, replaced, unnamed, directory, lower;

static int make(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0);
	return fd;
}

void guest_setup(void)
{
	unlinked = make("/guest-unlinked");
	CHECK(unlink("/guest-unlinked") == 0);
	other = make("/guest-first");
	CHECK(link("/guest-first", "/guest-second") == 0 && unlink("/guest-first") == 0);
	replaced = make("/guest-replaced");
	close(make("/guest-new"));
	CHECK(rename("/guest-new", "/guest-replaced") == 0);
	unnamed = open("/", O_TMPFILE | O_RDWR, 0600);
	if (unnamed < 0)
		CHECK((unnamed = open("/dev/shm", O_TMPFILE | O_RDWR, 0600)) >= 0);
	CHECK(mkdir("/guest-gone", 0700) == 0);
	directory = open("/guest-gone", O_RDONLY | O_DIRECTORY);
	CHECK(directory >= 0 && rmdir("/guest-gone") == 0);
	lower = open("/guest/lower-deleted", O_RDONLY);
	CHECK(lower >= 0 && unlink("/guest/lower-deleted") == 0);
}

static void put(int fd, const char *tag)
{
	CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, tag, strlen(tag), 0) == (ssize_t)strlen(tag));
}

void guest_put(const char *tag)
{
	put(unlinked, tag);
	put(other, tag);
	put(replaced, tag);
	put(unnamed, tag);
}

static void check(int fd, const char *tag, nlink_t links)
{
	char have[TAG_SIZE] = "";
	struct stat st;

	CHECK(pread(fd, have, sizeof(have) - 1, 0) > 0);
	CHECK_TAG(have, tag);
	/* Overlay counts the links of a lower layer that it hides: more than there are, but not none. */
	CHECK(fstat(fd, &st) == 0);
	if (links ? st.st_nlink < links : st.st_nlink > 0)
		FAIL("\"%s\" has %lu links, expected %lu", tag, (unsigned long)st.st_nlink, (unsigned long)links);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE] = "";
	struct stat st;
	int fd;

	check(unlinked, tag, 0);
	check(other, tag, 1);
	check(replaced, tag, 0);
	check(unnamed, tag, 0);
	CHECK(fstat(directory, &st) == 0 && S_ISDIR(st.st_mode));
	fd = open("/guest-second", O_RDONLY);
	CHECK(fd >= 0);
	check(fd, tag, 1);
	close(fd);
	CHECK(stat("/guest-replaced", &st) == 0 && st.st_size == 0);
	CHECK(access("/guest-unlinked", F_OK) < 0 && access("/guest-first", F_OK) < 0 &&
		access("/guest-gone", F_OK) < 0);
	CHECK(pread(lower, have, sizeof(have) - 1, 0) > 0 && !strncmp(have, "lower", 5));
	CHECK(access("/guest/lower-deleted", F_OK) < 0);
}
