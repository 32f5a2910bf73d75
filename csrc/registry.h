/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * The state directory: one record (a text file of key=value lines) for each
 * workspace and each snapshot, enough to find all that it owns after its owner was killed.
 *
 *   HOME/lock                    flock: held while records come, go, or are compared with layers
 *   HOME/workspaces/ID/record    HOME/snapshots/ID/record
 *   HOME/layers/NAME             lower directories; those that no record names are swept
 *   HOME/layers/runtime-HASH     kept: belongs to the installation
 *   HOME/trash/                  on the way out
 *
 * A record that names a new layer is written before that layer's directory is made.
 */
#include <stdbool.h>
#include <sys/types.h>

struct bsh_error;

struct bsh_owner {
	pid_t pid; /* 0: none */
	unsigned long long start_time;
	char boot_id[40];
};

struct bsh_record {
	char *id;
	struct bsh_owner owner;
	struct bsh_owner init; /* of a workspace, once it runs */
	struct bsh_owner pool; /* of a snapshot, and of a branch of it: the process that holds its memory, if any */
	char **layers;	       /* top first, absolute */
	char **deltas; /* of a workspace: layers of its own snapshots that its next one is stacked on; top first */
	char **env;
	char *label;
	char *hostname;
	char *engine; /* of a snapshot; of a branch: the one that made it; else NULL */
	char *parent; /* id of the snapshot or workspace it came from; else NULL */
	unsigned int pids_max;
	unsigned int cpu_weight;
	unsigned long long memory_max_bytes;
	unsigned long long shm_bytes;
	long long created_ns; /* CLOCK_REALTIME */
};

void bsh_record_release(struct bsh_record *record);
void bsh_record_copy(struct bsh_record *ret_copy, const struct bsh_record *record);
/* A new random id, 12 hexadecimal digits. */
char *bsh_new_id(void);
/* This process as an owner. */
int bsh_owner_self(struct bsh_owner *ret_owner, struct bsh_error *err);
int bsh_owner_of(pid_t pid, struct bsh_owner *ret_owner, struct bsh_error *err);
bool bsh_owner_alive(const struct bsh_owner *owner);

/* Makes HOME/KIND/ID (kind: "workspaces" or "snapshots") and writes its record; id and owner are taken from it. */
int bsh_registry_add(const char *home, const char *kind, const struct bsh_record *record, struct bsh_error *err);
/* Writes the record anew. */
int bsh_registry_update(const char *home, const char *kind, const struct bsh_record *record, struct bsh_error *err);
/* Removes HOME/KIND/ID with everything in it, then the layers that nothing names any more. An absent one is fine. */
int bsh_registry_remove(const char *home, const char *kind, const char *id, struct bsh_error *err);
int bsh_registry_read(
	const char *home, const char *kind, const char *id, struct bsh_record *ret_record, struct bsh_error *err);
/* Removes layers that no record names; counts them in *ret_n (may be NULL). */
int bsh_registry_sweep(const char *home, unsigned int *ret_n, struct bsh_error *err);
/* Takes HOME/lock; released by closing the descriptor. */
int bsh_registry_lock(const char *home, int *ret_fd, struct bsh_error *err);

/* Text of a record and back; for tests too. */
char *bsh_record_format(const struct bsh_record *record);
int bsh_record_parse(const char *text, struct bsh_record *ret_record, struct bsh_error *err);
