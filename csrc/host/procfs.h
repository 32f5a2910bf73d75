/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * What /proc tells of a process. The parsers take text, so that they can be
 * tested without any process; the readers return -ESRCH for a process that is gone.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct bsh_error;

struct bsh_proc_stat {
	pid_t pid;
	char comm[64];
	char state; /* R S D T t Z X */
	bool exiting;
	pid_t parent;
	pid_t group;
	pid_t session;
	unsigned long n_threads;
	unsigned long long
		start_time; /* clock ticks since boot: with the pid and the boot id, names a process for ever */
};
int bsh_proc_stat_parse(const char *text, struct bsh_proc_stat *ret_stat);
int bsh_proc_stat_read(pid_t pid, struct bsh_proc_stat *ret_stat, struct bsh_error *err);

struct bsh_proc_status {
	pid_t tracer;
	unsigned int n_namespaces; /* numbers in NSpid: depth of the pid namespace, 1 for the outermost */
	pid_t inner_pid;	   /* the last of NSpid */
	unsigned int uid;	   /* effective */
	unsigned long threads;
	unsigned long long page_table_bytes;
	int seccomp;
	unsigned long long effective_caps;
};
int bsh_proc_status_parse(const char *text, struct bsh_proc_status *ret_status);
int bsh_proc_status_read(pid_t pid, struct bsh_proc_status *ret_status, struct bsh_error *err);

enum bsh_vma_flag { BSH_VMA_READ = 1, BSH_VMA_WRITE = 2, BSH_VMA_EXEC = 4, BSH_VMA_SHARED = 8 };
struct bsh_vma {
	uint64_t start; /* addresses of the other process: never ours to follow */
	uint64_t end;
	unsigned int flags;
	uint64_t offset;
	unsigned int dev_major;
	unsigned int dev_minor;
	uint64_t inode;
	const char *name; /* points into the text, name_len long; "" for anonymous memory */
	size_t name_len;
};
/* Parses the line at *cursor of a /proc/PID/maps text and moves on: 1, 0 at the end, -EINVAL. */
int bsh_maps_next(const char **cursor, struct bsh_vma *ret_vma);

/* "Pss:" and others of smaps_rollup, in bytes; absent gives 0. */
int bsh_smaps_rollup_parse(const char *text, const char *key, unsigned long long *ret_bytes);

/* /proc/PID/NAME as text. */
int bsh_proc_read(pid_t pid, const char *name, char **ret_text, struct bsh_error *err);
/* The kernel's boot id; a static string of 36 characters. */
int bsh_boot_id(char ret_id[40], struct bsh_error *err);

/* Is the process (pid, start time) of this boot alive? A zombie is dead. */
bool bsh_process_alive(pid_t pid, unsigned long long start_time);
