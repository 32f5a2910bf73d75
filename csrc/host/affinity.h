/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Which processors threads may run on: CRIU leaves that out, so we carry it for every engine. */
#include <sys/types.h>

struct bsh_error;

/* Threads whose processors differ from their workspace's init's, by the ids that they have inside. */
struct bsh_affinity {
	struct bsh_pinned *threads; /* sorted by id */
	size_t n;
};

void bsh_affinity_release(struct bsh_affinity *affinity);
/* Of the processes of a workspace whose init is init_pid. */
int bsh_affinity_read(
	pid_t init_pid, const pid_t *pids, size_t n_pids, struct bsh_affinity *ret_affinity, struct bsh_error *err);
/* Text of it, freed by the caller, and back. */
char *bsh_affinity_format(const struct bsh_affinity *affinity);
int bsh_affinity_parse(const char *text, struct bsh_affinity *ret_affinity, struct bsh_error *err);
/* Gives them to the same threads of a branch; processors that are gone are passed over. */
int bsh_affinity_apply(const struct bsh_affinity *affinity, const pid_t *pids, size_t n_pids, struct bsh_error *err);
