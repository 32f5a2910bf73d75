// SPDX-License-Identifier: GPL-2.0-only
/*
 * smaps is slow, since the kernel walks all page tables for its sums; of all it says a dump
 * needs the VmFlags line, which maps has not. So smaps is read while the source still runs,
 * and maps once it is frozen: a mapping whose line has not changed has kept its flags.
 * (But for an madvise() on exactly one whole mapping in the milliseconds between.)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bunshin-mapfile.h"
#include "bunshin-pool.h"
#include "bunshin-scout.h"
#include "bunshin-smaps.h"
#include "log.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

/* For each mapping "line\nVmFlags...\n", in order; and the lines alone. */
struct known {
	pid_t pid;
	char *text, *lines;
	size_t text_len, lines_len;
};

static struct known *known;
static size_t n_known;

static struct known *find(pid_t pid)
{
	size_t i;

	for (i = 0; i < n_known; i++)
		if (known[i].pid == pid)
			return &known[i];
	return NULL;
}

static int read_proc(pid_t pid, const char *name, char **ret_text, size_t *ret_len)
{
	size_t room = 1 << 16, len = 0;
	char path[64], *text = NULL, *more;
	ssize_t got = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0) {
		more = xrealloc(text, room);
		if (!more)
			break;
		text = more;
		got = read(fd, text + len, room - len);
		if (got <= 0)
			break;
		len += got;
		if (room - len < 1 << 14)
			room *= 2;
	}
	if (fd >= 0)
		close(fd);
	if (got) {
		xfree(text);
		return -1;
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}

static void forget(struct known *k)
{
	xfree(k->text);
	xfree(k->lines);
	k->text = k->lines = NULL;
	k->text_len = k->lines_len = 0;
}

static void add(char *to, size_t *len, const char *line, size_t n)
{
	memcpy(to + *len, line, n);
	*len += n;
}

/* Keeps the lines of use; they are a small part. */
static int digest(struct known *k, const char *smaps, size_t len)
{
	const char *at = smaps, *end = smaps + len;

	k->text = xmalloc(len + 1);
	k->lines = xmalloc(len + 1);
	if (!k->text || !k->lines)
		return -1;
	while (at < end) {
		const char *stop = memchr(at, '\n', end - at);
		size_t n = (stop ? stop + 1 : end) - at;
		bool header = *at < 'A' || *at > 'Z';

		if (header)
			add(k->lines, &k->lines_len, at, n);
		if (header || (n > 8 && !memcmp(at, "VmFlags:", 8)))
			add(k->text, &k->text_len, at, n);
		at += n;
	}
	return 0;
}

static int learn_one(pid_t pid)
{
	struct known *k = find(pid), *all;
	char *text;
	size_t len;
	bool same;
	int ret;

	if (k && k->text) {
		if (read_proc(pid, "maps", &text, &len))
			return 0;
		same = len == k->lines_len && !memcmp(text, k->lines, len);
		xfree(text);
		if (same)
			return 0;
		forget(k);
	}
	/* It may end meanwhile. */
	if (read_proc(pid, "smaps", &text, &len))
		return 0;
	if (!k) {
		all = xrealloc(known, (n_known + 1) * sizeof(*all));
		if (!all)
			return -1;
		known = all;
		k = &all[n_known++];
		*k = (struct known){ .pid = pid };
	}
	ret = digest(k, text, len);
	xfree(text);
	return ret;
}

int bunshin_smaps_learn(pid_t root)
{
	struct bunshin_pid *pids;
	size_t n, i;
	int ret = 0;

	if (bunshin_read_tree(root, &pids, &n))
		return -1;
	for (i = 0; i < n && !ret; i++)
		ret = learn_one(pids[i].real);
	xfree(pids);
	return ret;
}

static int real_smaps(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		pr_perror("cannot open %s", path);
	return fd;
}

static bool look(pid_t pid)
{
	struct known *k = find(pid);
	char *text;
	size_t len;
	bool same;

	if (!k || !k->text || read_proc(pid, "maps", &text, &len))
		return false;
	same = len == k->lines_len && !memcmp(text, k->lines, len);
	xfree(text);
	return same;
}

int bunshin_smaps_scout(void)
{
	pid_t *pids = xmalloc((n_known + 1) * sizeof(*pids));
	size_t i;
	int ret;

	if (!pids)
		return -1;
	for (i = 0; i < n_known; i++)
		pids[i] = known[i].pid;
	ret = bunshin_scout_start(pids, n_known, look);
	xfree(pids);
	return ret;
}

int bunshin_smaps_open(pid_t pid)
{
	struct known *k = find(pid);
	int fd;

	bunshin_mapfile_task(pid);
	if (!k || !k->text || !bunshin_scout_same(pid))
		return real_smaps(pid);
	fd = memfd_create("bunshin-smaps", MFD_CLOEXEC);
	if (fd < 0 || write(fd, k->text, k->text_len) != (ssize_t)k->text_len || lseek(fd, 0, SEEK_SET)) {
		pr_perror("cannot keep mappings");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}
