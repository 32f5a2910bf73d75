/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef BUNSHIN_POOL_PROTO_H
#define BUNSHIN_POOL_PROTO_H
/*
 * What is said between the core and a page pool over its control socket (Unix,
 * SOCK_SEQPACKET; one message a packet; host byte order, both ends are one build).
 *
 *   core                          pool
 *   PREPARE                   ->        source still runs
 *                             <- OK
 *   RECORD                    ->        source is frozen by its cgroup
 *                             <- RECORDED (or FAILED: the source is let go already)
 *   RELEASE                   ->        processes are let go; the cgroup stays frozen for the core to thaw
 *                             <- OK
 *   BRANCH   namespaces ...   ->        any number at once; each answers on a socket of its own
 *                             <- OK with the pid, or FAILED; its end without an answer is a failure
 *   FORK     control socket   ->        a new pool process for a child snapshot; it answers there
 *                             <- OK with its pid
 *   SAVE     socket, directory  ->      a child writes all as CRIU images; it answers on the socket
 *                             <- OK
 *   LOAD     directory        ->        instead of PREPARE, RECORD, RELEASE: becomes what was saved there
 *                             <- OK
 *
 * The pool exits when its control socket is shut down at the other end, or the process that
 * started it has ended.
 */
#include <stdint.h>

#define BSH_POOL_VERSION 5

enum bsh_pool_type {
	BSH_POOL_PREPARE = 1,
	BSH_POOL_RECORD,
	BSH_POOL_RELEASE,
	BSH_POOL_BRANCH,
	BSH_POOL_FORK,
	BSH_POOL_SAVE,
	BSH_POOL_LOAD,
	BSH_POOL_OK = 64,
	BSH_POOL_RECORDED,
	BSH_POOL_FAILED,
};

struct bsh_pool_header {
	uint32_t size; /* of the whole message */
	uint32_t type; /* enum bsh_pool_type */
	uint32_t version;
	uint32_t seq; /* an answer carries its request's */
};

struct bsh_pool_prepare {
	struct bsh_pool_header header;
	int32_t root_pid;     /* the workspace's init, as the pool sees it */
	uint32_t log_level;   /* 0 to 4 */
	uint64_t ghost_limit; /* bytes of a deleted file that is still open */
	uint32_t share;       /* through the kernel module, where that is possible */
	uint32_t reserved;
	char freezer[512];    /* freezer cgroup's directory */
	char upper[512];      /* its overlay's upper directory */
	char net_key[32];     /* name for the network namespace in the images */
	char log[512];        /* absolute path of the dump's log; "": none */
};

/*
 * RECORD, RELEASE, FORK, SAVE, LOAD. FORK comes with one descriptor, the new pool's control socket; SAVE with
 * a socket for the answer and a directory; LOAD with a directory.
 */
struct bsh_pool_plain {
	struct bsh_pool_header header;
};

/*
 * Descriptors: socket for the answer, mount namespace, network namespace, then for n_cgroups the files to enter them by:
 * cgroup.procs or tasks, or for the first, if it is of v2, its directory; last, with a view, the overlay's upper directory
 * and the view: the layers below it, mounted nowhere.
 */
#define BSH_POOL_CGROUPS_MAX 16
#define BSH_POOL_BRANCH_FDS_MAX (5 + BSH_POOL_CGROUPS_MAX)
struct bsh_pool_branch {
	struct bsh_pool_header header;
	uint32_t n_cgroups;
	uint32_t cgroup_v2; /* the first is */
	uint32_t log_level;
	uint32_t view; /* there is one */
	char root[512];      /* the overlay's mount point inside the mount namespace */
	char net_key[32];    /* as recorded */
	char log[512];       /* absolute path of the restore's log; "": none */
};

#define BSH_POOL_PHASES_MAX 24
struct bsh_pool_phase {
	char name[24];
	int64_t start_ns; /* CLOCK_MONOTONIC */
	int64_t length_ns;
};

struct bsh_pool_answer { /* OK, RECORDED, FAILED */
	struct bsh_pool_header header;
	int32_t pid;           /* BRANCH: init of the branch; FORK: the new pool */
	int32_t error;         /* FAILED: an errno value */
	uint32_t made_files;   /* RECORDED: names for nameless open files were put into the source's root */
	uint32_t n_phases;     /* RELEASE, BRANCH */
	uint64_t copied_bytes; /* RECORDED */
	uint64_t shared_bytes; /* RECORDED: taken over from the parent's pool */
	uint64_t pool_bytes;   /* RECORDED: all that the pool holds */
	struct bsh_pool_phase phases[BSH_POOL_PHASES_MAX];
	char text[512]; /* FAILED: what and why */
};

#endif
