/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BunshinFork, the public API: plain declarations only, since cffi reads this
 * file verbatim. Every call returns 0 or -errno, fills *err when it fails and
 * writes its ret_* outputs only on success. Calls on different handles may run
 * in different threads; calls on one handle are serialised by the library, but
 * commands in a workspace run beside all others. A handle belongs to the process that
 * made it: freeing it in a forked child does nothing.
 * Strings are UTF-8; a NULL-terminated array is written const char *const *.
 */

struct bsh_error {
	int code;      /* errno value; 0 while nothing has failed */
	char msg[512]; /* "fork ws 7: pid 71 fd 9: io_uring is not supported" */
};

struct bsh_core;      /* one state directory and one CRIU; opened once a process */
struct bsh_workspace; /* a running container */
struct bsh_snapshot;  /* a frozen state of one; immutable */

/* ---- core ------------------------------------------------------------- */

/* Opens the state directory home (made if absent); criu is the path of our CRIU. */
int bsh_core_open(const char *home, const char *criu, struct bsh_core **ret_core, struct bsh_error *err);
void bsh_core_free(struct bsh_core *core);

/* What the kernel and the machine offer, one "name=value\n" a line; freed with bsh_string_free. */
int bsh_core_features(struct bsh_core *core, char **ret_text, struct bsh_error *err);
void bsh_string_free(char *text);

/* What bsh_gc found without a living owner, and reaped. */
struct bsh_gc_report {
	unsigned int workspaces;
	unsigned int snapshots;
	unsigned int processes;
	unsigned int cgroups;
	unsigned int layers;
	unsigned int strays; /* workspaces whose state directory was deleted as a whole; counted nowhere else */
};
int bsh_gc(struct bsh_core *core, struct bsh_gc_report *ret_report, struct bsh_error *err);

/* ---- workspace -------------------------------------------------------- */

struct bsh_workspace_spec {
	const char *const *layers; /* lower directories, top first, absolute */
	const char *const *argv;   /* main command, run by the workspace's init */
	const char *const *env;	   /* "NAME=value" */
	const char *cwd;	   /* NULL: / */
	const char *hostname;	   /* NULL: bunshin */
	const char *label;	   /* free text kept in the state directory (the registry's JSON); NULL: none */
	unsigned int uid;	   /* of the main command */
	unsigned int gid;
	unsigned int pids_max;		     /* 0: no limit */
	unsigned int cpu_weight;	     /* 0: default; 1 to 10000, 100 is normal */
	unsigned long long memory_max_bytes; /* 0: no limit */
	unsigned long long shm_bytes;	     /* size of /dev/shm; 0: 1 GiB */
};

/* Starts a workspace; returns once its init runs the main command. */
int bsh_workspace_start(struct bsh_core *core, const struct bsh_workspace_spec *spec, struct bsh_workspace **ret_ws,
	struct bsh_error *err);
/* Kills all of it, removes cgroups and directories. Idempotent; also when it died by itself. */
int bsh_workspace_stop(struct bsh_workspace *ws, struct bsh_error *err);
void bsh_workspace_free(struct bsh_workspace *ws); /* stops it first if it still runs */

const char *bsh_workspace_id(const struct bsh_workspace *ws);
int bsh_workspace_pid(const struct bsh_workspace *ws);	       /* init's pid on the host */
const char *bsh_workspace_dir(const struct bsh_workspace *ws); /* its state directory */
/* 1 while init lives, 0 after. */
int bsh_workspace_alive(struct bsh_workspace *ws);

struct bsh_exec_request {
	const char *const *argv;
	const char *const *env; /* NULL: the workspace's */
	const char *cwd;	/* NULL: / */
	const void *input;	/* bytes for its stdin */
	unsigned long long input_len;
	unsigned long long output_max_bytes; /* of each stream; 0: 64 MiB; more is cut and flagged */
	long long timeout_ms;		     /* < 0: none; when over, the command's processes are killed */
	unsigned int uid;
	unsigned int gid;
};
struct bsh_exec_result {
	int exit_code; /* 0 to 255; 128 + signal when killed by one */
	int timed_out;
	int truncated;
	unsigned char *out;
	unsigned long long out_len;
	unsigned char *errout;
	unsigned long long errout_len;
};
int bsh_workspace_exec(struct bsh_workspace *ws, const struct bsh_exec_request *req, struct bsh_exec_result *ret_result,
	struct bsh_error *err);
void bsh_exec_result_release(struct bsh_exec_result *result);

int bsh_workspace_freeze(struct bsh_workspace *ws, struct bsh_error *err);
int bsh_workspace_thaw(struct bsh_workspace *ws, struct bsh_error *err);

/*
 * What it gets of CPU and disks when others want them too: 1 to 10000, 100 is normal, 0 is what it was started with.
 * With a CPU weight of 1 it runs only while nobody else wants to, where the kernel can do that.
 */
int bsh_workspace_weigh(
	struct bsh_workspace *ws, unsigned int cpu_weight, unsigned int io_weight, struct bsh_error *err);
/* Kills all its processes at once, whatever runs in it, and leaves the rest to bsh_workspace_stop. Idempotent. */
int bsh_workspace_kill(struct bsh_workspace *ws, struct bsh_error *err);
/* How often something in it wanted to send to an address beyond its loopback, since it was made; each was refused. */
int bsh_workspace_escapes(struct bsh_workspace *ws, unsigned long long *ret_count, struct bsh_error *err);

struct bsh_stats {
	unsigned long long processes;
	unsigned long long threads;
	unsigned long long pss_bytes;	 /* proportional set size, all processes */
	unsigned long long unique_bytes; /* pages that no process outside the workspace maps */
	unsigned long long shared_bytes; /* pages that others map too, counted whole */
	unsigned long long page_table_bytes;
	unsigned long long kernel_bytes; /* as the memory cgroup tells; 0 where it does not */
	unsigned long long layer_bytes;	 /* disk taken by the workspace's own upper directory */
};
int bsh_workspace_stats(struct bsh_workspace *ws, struct bsh_stats *ret_stats, struct bsh_error *err);

/* ---- snapshot and fork ------------------------------------------------ */

struct bsh_phase {
	char name[24];
	long long start_ns; /* from the start of the operation */
	long long length_ns;
};
struct bsh_fork_stats {
	long long total_ns;
	long long frozen_ns;		 /* time the source stood still; 0 for a branch */
	unsigned long long copied_bytes; /* memory copied */
	unsigned long long shared_bytes; /* memory shared copy-on-write instead */
	unsigned long long layer_bytes;	 /* files copied into the new layer */
	unsigned int n_phases;
	struct bsh_phase phases[32];
};

/* Snapshots a running workspace, which goes on. engine: "criu", "pool", "kmod"; NULL: the default. */
int bsh_snapshot_take(struct bsh_workspace *ws, const char *engine, struct bsh_snapshot **ret_snap,
	struct bsh_fork_stats *ret_stats, struct bsh_error *err);
/* Makes one branch. Several threads may branch from one snapshot at once. label as in the spec. */
int bsh_snapshot_branch(struct bsh_snapshot *snap, const char *label, struct bsh_workspace **ret_ws,
	struct bsh_fork_stats *ret_stats, struct bsh_error *err);
/* The same for one that nobody waits for: weighed before anything runs in it, so that its making yields too. */
int bsh_snapshot_branch_weighed(struct bsh_snapshot *snap, const char *label, unsigned int cpu_weight,
	unsigned int io_weight, struct bsh_workspace **ret_ws, struct bsh_fork_stats *ret_stats, struct bsh_error *err);
/* Somebody waits for them now: branches in the making get the weights that their source was started with. */
int bsh_snapshot_hurry(struct bsh_snapshot *snap, struct bsh_error *err);
const char *bsh_snapshot_id(const struct bsh_snapshot *snap);
const char *bsh_snapshot_dir(const struct bsh_snapshot *snap);
const char *bsh_snapshot_engine(const struct bsh_snapshot *snap);
/* Gives up the snapshot; its layers live on while branches use them. Idempotent. */
int bsh_snapshot_drop(struct bsh_snapshot *snap, struct bsh_error *err);
void bsh_snapshot_free(struct bsh_snapshot *snap); /* drops it first */

/* ---- snapshots on disk ------------------------------------------------ */

/*
 * Writes the snapshot into the empty directory dir, beside branches; a drop waits for it. It is on the
 * disk when this returns; knowing a whole directory from a torn one is the caller's.
 *
 *   dir/images/      complete CRIU images; a plain restore can read them
 *   dir/layer/       all that snapshots have put above the base, as one layer
 *   dir/record       as in the state directory; its layers are the base: runtime layer, image
 *   dir/processors   what CRIU leaves out
 */
int bsh_snapshot_save(struct bsh_snapshot *snap, const char *dir, struct bsh_error *err);
/*
 * Makes a snapshot of what was saved; dir may go once it has returned. base: lower directories below its layer,
 * top first. engine: NULL for the one that saved it; each can read what any wrote.
 */
int bsh_snapshot_load(struct bsh_core *core, const char *dir, const char *engine, const char *const *base,
	struct bsh_snapshot **ret_snap, struct bsh_error *err);

/* Names of the engines, the default first; NULL past the last. */
const char *bsh_engine_name(unsigned int index);

/* ---- accounting ------------------------------------------------------- */

/*
 * What a workspace, a snapshot or a group of them takes. Every page is counted once, however often it is
 * mapped: it is unique if no process outside maps it, shared if one does. Of shared pages each is counted whole.
 */
struct bsh_account {
	unsigned long long processes;
	unsigned long long threads;
	unsigned long long private_unique_bytes; /* anonymous memory */
	unsigned long long private_shared_bytes;
	unsigned long long
		shm_unique_bytes; /* shared memory, mapped or not: memfd, /dev/shm, System V, shared anonymous */
	unsigned long long shm_shared_bytes;
	unsigned long long file_unique_bytes; /* mapped pages of files: the kernel can drop them and read them again */
	unsigned long long file_shared_bytes;
	unsigned long long page_table_bytes;
	unsigned long long kernel_bytes;  /* as memory cgroups tell, page tables included; 0 where they do not */
	unsigned long long disk_bytes;	  /* a workspace's upper directory; a snapshot's layers and images */
	unsigned long long machine_bytes; /* what its end would give back: unique private and shared memory,
					     and the greater of kernel memory and page tables */
};
/*
 * Accounts for workspaces and snapshots by their ids, whichever process owns them; NULL ends the list. ret_each
 * has room for each of them; one that is gone takes nothing. A workspace is its processes, a snapshot its page pool's.
 * ret_all is of all together, and of the page pools that the workspaces came from even if their snapshot was dropped.
 */
int bsh_account(struct bsh_core *core, const char *const *ids, struct bsh_account *ret_each,
	struct bsh_account *ret_all, struct bsh_error *err);

/* ---- for tests -------------------------------------------------------- */

/* Names of the points where an operation can be made to fail; NULL past the last. */
const char *bsh_fault_name(unsigned int index);
/* The next operation of this process that comes to the point fails there; NULL disarms. */
int bsh_fault_arm(const char *name, struct bsh_error *err);
