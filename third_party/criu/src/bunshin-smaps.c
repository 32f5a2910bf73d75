// SPDX-License-Identifier: GPL-2.0-only
/*
 * smaps is slow, since the kernel walks all page tables for its sums; of all it says a dump
 * needs the VmFlags line and the protection key, which maps has not. So smaps is read while the source still runs,
 * and maps once it is frozen: a mapping whose line has not changed has kept its flags.
 * (But for an madvise() or a protection key on exactly one whole mapping in the milliseconds between.)
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-mapfile.h"
#include "bunshin-pool.h"
#include "bunshin-procmap.h"
#include "bunshin-scout.h"
#include "bunshin-smaps.h"
#include "kerndat.h"
#include "log.h"
#include "util.h"
#include "vma.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

struct line {
	uint64_t start, end, offset, inode;
	uint32_t flags, dev_major, dev_minor;
};

/* For each mapping "line\nProtectionKey...\nVmFlags...\n", the key if it has one, in order; the lines alone, and as numbers; all as CRIU has it. */
struct known {
	pid_t pid;
	char *text, *lines;
	size_t text_len, lines_len;
	struct line *mapped;
	size_t n_mapped;
	struct vm_area_list vmas;
	bool parsed;
};

static struct known **known;
static size_t n_known;

static struct known *find(pid_t pid)
{
	size_t i;

	for (i = 0; i < n_known; i++)
		if (known[i]->pid == pid)
			return known[i];
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
	xfree(k->mapped);
	if (k->parsed)
		free_mappings(&k->vmas);
	*k = (struct known){ .pid = k->pid };
}

static void add(char *to, size_t *len, const char *line, size_t n)
{
	memcpy(to + *len, line, n);
	*len += n;
}

static bool has_name(const char *line, size_t n, const char *name)
{
	return n > strlen(name) && !memcmp(line, name, strlen(name));
}

static bool is_of_use(const char *line, size_t n)
{
	return has_name(line, n, "VmFlags:") ||
	       (has_name(line, n, "ProtectionKey:") && atoi(line + strlen("ProtectionKey:")));
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
		if (header || is_of_use(at, n))
			add(k->text, &k->text_len, at, n);
		at += n;
	}
	return 0;
}

static uint32_t flags_of(const char *perms)
{
	return (perms[0] == 'r' ? BUNSHIN_PROCMAP_READ : 0) | (perms[1] == 'w' ? BUNSHIN_PROCMAP_WRITE : 0) |
	       (perms[2] == 'x' ? BUNSHIN_PROCMAP_EXEC : 0) | (perms[3] == 's' ? BUNSHIN_PROCMAP_SHARED : 0);
}

/* The lines as numbers, which the kernel tells faster than lines. */
static int number_lines(struct known *k)
{
	const char *at = k->lines, *end = k->lines + k->lines_len;
	size_t room = 0;

	for (; at < end; at = memchr(at, '\n', end - at) + 1) {
		struct line line = {};
		char perms[5];

		if (sscanf(at, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &line.start, &line.end, perms,
			   &line.offset, &line.dev_major, &line.dev_minor, &line.inode) != 7)
			return -1;
		line.flags = flags_of(perms);
		if (line.start >= kdat.task_size)
			break;
		if (k->n_mapped == room) {
			struct line *v = xrealloc(k->mapped, (room = room ? 2 * room : 256) * sizeof(*v));

			if (!v)
				return -1;
			k->mapped = v;
		}
		k->mapped[k->n_mapped++] = line;
	}
	return 0;
}

static struct known *add_known(pid_t pid)
{
	struct known **all = xrealloc(known, (n_known + 1) * sizeof(*all)), *k = all ? xmalloc(sizeof(*k)) : NULL;

	if (all)
		known = all;
	if (!k)
		return NULL;
	*k = (struct known){ .pid = pid };
	return known[n_known++] = k;
}

static int learn_one(pid_t pid)
{
	struct known *k = find(pid);
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
	k = k ?: add_known(pid);
	ret = !k || digest(k, text, len) || number_lines(k) ? -1 : 0;
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

bool bunshin_smaps_known(pid_t pid, const char **ret_text, size_t *ret_len)
{
	struct known *k = find(pid);

	if (!k || !k->text_len)
		return false;
	*ret_text = k->text;
	*ret_len = k->text_len;
	return true;
}

void bunshin_smaps_forget(void)
{
	while (n_known) {
		struct known *k = known[--n_known];

		forget(k);
		xfree(k);
	}
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

static bool same_text(const struct known *k)
{
	char *text;
	size_t len;
	bool same;

	if (read_proc(k->pid, "maps", &text, &len))
		return false;
	same = len == k->lines_len && !memcmp(text, k->lines, len);
	xfree(text);
	return same;
}

static bool is_line(const struct line *line, const struct bunshin_procmap *query)
{
	return line->start == query->start && line->end == query->end && line->flags == query->vma_flags &&
	       line->offset == query->offset && line->inode == query->inode && line->dev_major == query->dev_major &&
	       line->dev_minor == query->dev_minor;
}

/* 1: as learnt, 0: not so, -1: the kernel cannot tell. */
static int same_numbers(const struct known *k, int maps)
{
	struct bunshin_procmap query = { .size = sizeof(query), .flags = BUNSHIN_PROCMAP_OR_NEXT };
	size_t i;

	for (i = 0; !ioctl(maps, BUNSHIN_PROCMAP_QUERY, &query); i++) {
		if (i == k->n_mapped || !is_line(&k->mapped[i], &query))
			return 0;
		query.addr = query.end;
	}
	return errno == ENOTTY ? -1 : errno == ENOENT && i == k->n_mapped;
}

static bool look(pid_t pid)
{
	struct known *k = find(pid);
	char path[64];
	int maps, same;

	if (!k || !k->text)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = open(path, O_RDONLY | O_CLOEXEC);
	if (maps < 0)
		return false;
	same = same_numbers(k, maps);
	close(maps);
	return same < 0 ? same_text(k) : same;
}

int bunshin_smaps_scout(void)
{
	pid_t *pids = xmalloc((n_known + 1) * sizeof(*pids));
	size_t i;
	int ret;

	if (!pids)
		return -1;
	for (i = 0; i < n_known; i++)
		pids[i] = known[i]->pid;
	ret = bunshin_scout_start(pids, n_known, look);
	xfree(pids);
	return ret;
}

static int known_smaps(const struct known *k)
{
	int fd = memfd_create("bunshin-smaps", MFD_CLOEXEC);

	if (fd < 0 || write(fd, k->text, k->text_len) != (ssize_t)k->text_len || lseek(fd, 0, SEEK_SET)) {
		pr_perror("cannot keep mappings");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* The one whose mappings are being parsed ahead. */
static struct known *parsing;

int bunshin_smaps_open(pid_t pid)
{
	struct known *k = find(pid);

	bunshin_mapfile_task(pid);
	if (k && k == parsing)
		return known_smaps(k);
	if (!k || !k->text || !bunshin_scout_same(pid))
		return real_smaps(pid);
	return known_smaps(k);
}

/* ---- parsed ahead ---- */

int bunshin_smaps_parse(void)
{
	size_t i;

	for (i = 0; i < n_known; i++) {
		struct known *k = known[i];

		if (!k->text || k->parsed)
			continue;
		parsing = k;
		k->parsed = !parse_smaps(k->pid, &k->vmas, NULL);
		parsing = NULL;
		/* It may have ended; if not, what is wrong is found once more when it counts. */
		if (!k->parsed)
			forget(k);
	}
	return 0;
}

/* The file of a shared mapping may have changed in all ways meanwhile: looked up now. */
static int open_mapped(pid_t pid, const struct vma_area *vma)
{
	char path[96];

	snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, pid, vma->e->start, vma->e->end);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static int dump_file(pid_t pid, struct vma_area *vma, int *shared, dump_filemap_t dump)
{
	int fd = bunshin_mapfile_fd(vma);

	if (!vma->file_borrowed)
		close_safe(shared);
	if (fd < 0 && *shared < 0)
		*shared = open_mapped(pid, vma);
	if (!vma->file_borrowed && (fd < 0 ? fstat(*shared, vma->vmst) : bunshin_mapfile_stat(vma)))
		return -1;
	fd = fd < 0 ? *shared : fd;
	return fd < 0 ? -1 : dump(vma, fd);
}

int bunshin_known_mappings(pid_t pid, struct vm_area_list *vmas, dump_filemap_t dump)
{
	struct known *k = bunshin_recording() && dump ? find(pid) : NULL;
	static bool begun;
	struct vma_area *vma;
	int shared = -1, ret = 0;

	if (bunshin_recording() && !begun)
		bunshin_phase("dump: tasks");
	begun = true;
	if (!k || !k->parsed || !bunshin_scout_same(pid))
		return 1;
	bunshin_mapfile_task(pid);
	list_for_each_entry(vma, &k->vmas.h, list)
		if (vma_area_is(vma, VMA_FILE_PRIVATE) || vma_area_is(vma, VMA_FILE_SHARED))
			ret = ret ?: dump_file(pid, vma, &shared, dump);
	close_safe(&shared);
	/* Then it is all looked up anew. */
	if (ret)
		return 1;
	*vmas = k->vmas;
	INIT_LIST_HEAD(&vmas->h);
	list_splice(&k->vmas.h, &vmas->h);
	k->parsed = false;
	return 0;
}
