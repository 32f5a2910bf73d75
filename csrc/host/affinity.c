/* SPDX-License-Identifier: Apache-2.0 */
#include "host/affinity.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/procfs.h"

struct bsh_pinned {
	pid_t inner;
	cpu_set_t processors;
};

void bsh_affinity_release(struct bsh_affinity *affinity)
{
	free(affinity->threads);
	affinity->threads = NULL;
	affinity->n = 0;
}

static int compare_pinned(const void *a, const void *b)
{
	return ((const struct bsh_pinned *)a)->inner - ((const struct bsh_pinned *)b)->inner;
}

typedef int (*thread_visitor)(void *context, pid_t pid, pid_t tid, struct bsh_error *err);

static int visit_threads(const pid_t *pids, size_t n_pids, thread_visitor visit, void *context, struct bsh_error *err)
{
	for (size_t i = 0; i < n_pids; i++) {
		auto_closedir DIR *dir = NULL;
		struct dirent *item;
		char path[64];
		int rc;

		snprintf(path, sizeof(path), "/proc/%d/task", pids[i]);
		dir = opendir(path);
		while (dir && (item = readdir(dir))) {
			pid_t tid = atoi(item->d_name);

			if (tid <= 0)
				continue;
			rc = visit(context, pids[i], tid, err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/* The thread's id in the innermost pid namespace; 0 when it has ended. */
static pid_t inner_id(pid_t pid, pid_t tid)
{
	struct bsh_proc_status status;
	auto_free char *text = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, tid);
	if (bsh_read_file(AT_FDCWD, path, &text, NULL, NULL) < 0 || bsh_proc_status_parse(text, &status) < 0)
		return 0;
	return status.inner_pid;
}

/* ---- source ------------------------------------------------------------------ */

struct reading {
	struct bsh_affinity found;
	cpu_set_t usual;
};

static int read_thread(void *context, pid_t pid, pid_t tid, struct bsh_error *err)
{
	struct reading *reading = context;
	struct bsh_pinned *grown;
	cpu_set_t processors;
	size_t n = reading->found.n;

	if (sched_getaffinity(tid, sizeof(processors), &processors) < 0 || CPU_EQUAL(&processors, &reading->usual))
		return 0;
	if ((n & (n + 1)) == 0) {
		grown = realloc(reading->found.threads, (n + 1) * 2 * sizeof(*grown));
		if (!grown)
			return bsh_fail(err, ENOMEM, "processors of threads");
		reading->found.threads = grown;
	}
	reading->found.threads[n].inner = inner_id(pid, tid);
	reading->found.threads[n].processors = processors;
	reading->found.n++;
	return 0;
}

int bsh_affinity_read(
	pid_t init_pid, const pid_t *pids, size_t n_pids, struct bsh_affinity *ret_affinity, struct bsh_error *err)
{
	struct reading reading = {0};
	int rc;

	if (sched_getaffinity(init_pid, sizeof(reading.usual), &reading.usual) < 0)
		return bsh_fail(err, errno, "processors of pid %d", init_pid);
	rc = visit_threads(pids, n_pids, read_thread, &reading, err);
	if (rc < 0) {
		bsh_affinity_release(&reading.found);
		return rc;
	}
	if (reading.found.n)
		qsort(reading.found.threads, reading.found.n, sizeof(*reading.found.threads), compare_pinned);
	*ret_affinity = reading.found;
	return 0;
}

/* ---- text: a line for each thread, its id and its processors ------------------------ */

char *bsh_affinity_format(const struct bsh_affinity *affinity)
{
	struct bsh_buffer buffer = {0};

	bsh_buffer_add(&buffer, "", 0);
	for (size_t i = 0; i < affinity->n; i++) {
		const struct bsh_pinned *thread = &affinity->threads[i];

		bsh_buffer_printf(&buffer, "%d", thread->inner);
		for (int processor = 0; processor < CPU_SETSIZE; processor++)
			if (CPU_ISSET(processor, &thread->processors))
				bsh_buffer_printf(&buffer, " %d", processor);
		bsh_buffer_add(&buffer, "\n", 1);
	}
	return buffer.text;
}

static int parse_thread(char *line, struct bsh_pinned *ret_thread)
{
	char *word = strsep(&line, " ");

	ret_thread->inner = atoi(word);
	CPU_ZERO(&ret_thread->processors);
	while ((word = strsep(&line, " "))) {
		int processor = atoi(word);

		if (processor < 0 || processor >= CPU_SETSIZE)
			return -EINVAL;
		CPU_SET(processor, &ret_thread->processors);
	}
	return ret_thread->inner > 0 ? 0 : -EINVAL;
}

int bsh_affinity_parse(const char *text, struct bsh_affinity *ret_affinity, struct bsh_error *err)
{
	auto_free char *copy = bsh_strdup(text);
	struct bsh_affinity found = {0};
	char *rest = copy, *line;
	size_t lines = 1;

	for (const char *at = text; (at = strchr(at, '\n')); at++)
		lines++;
	found.threads = bsh_alloc(lines * sizeof(*found.threads));
	while ((line = strsep(&rest, "\n"))) {
		if (*line && parse_thread(line, &found.threads[found.n]) < 0) {
			bsh_affinity_release(&found);
			return bsh_fail(err, EINVAL, "parse the processors of threads");
		}
		found.n += *line != '\0';
	}
	qsort(found.threads, found.n, sizeof(*found.threads), compare_pinned);
	*ret_affinity = found;
	return 0;
}

/* ---- branch -------------------------------------------------------------------- */

static int apply_thread(void *context, pid_t pid, pid_t tid, struct bsh_error *err)
{
	const struct bsh_affinity *affinity = context;
	struct bsh_pinned key = {.inner = inner_id(pid, tid)};
	const struct bsh_pinned *found =
		bsearch(&key, affinity->threads, affinity->n, sizeof(*affinity->threads), compare_pinned);

	if (!found || sched_setaffinity(tid, sizeof(found->processors), &found->processors) == 0)
		return 0;
	/* Ended meanwhile, or all its processors are gone. */
	return errno == ESRCH || errno == EINVAL ? 0 : bsh_fail(err, errno, "pin pid %d to its processors", tid);
}

int bsh_affinity_apply(const struct bsh_affinity *affinity, const pid_t *pids, size_t n_pids, struct bsh_error *err)
{
	return affinity->n ? visit_threads(pids, n_pids, apply_thread, (void *)affinity, err) : 0;
}
