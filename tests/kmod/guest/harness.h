/* SPDX-License-Identifier: GPL-2.0-only */
#pragma once
/*
 * One test is one function, run in a process of its own. A source is a child
 * that carries out functions for the test, which pulls from it. Both are the
 * same static program, so that a function has the same address in each; all
 * memory that is pulled lies in ZONE, where neither has anything of its own.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "bunshin_kmod.h"

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define MIB (1UL << 20)
#define ZONE ((char *)0x200000000000UL)

struct source {
	pid_t pid;
	int pidfd;
	int sock;
};

typedef long source_fn(void *arg);

/* Starts a source; it ends with the test. */
void source_start(struct source *s);
/* As that, under a user and group of its own without privileges. */
void source_start_as(struct source *s, uid_t uid);
/* Runs fn(arg) there; arg is what the test had in memory when the source started, or a number. */
long source_call(struct source *s, source_fn *fn, void *arg);
/* The same in two halves, so that several run at once. */
void source_begin(struct source *s, source_fn *fn, void *arg);
long source_wait(struct source *s);
/* Kills it and waits until it is gone. */
void source_kill(struct source *s);

/* BUNSHIN_COW_RANGE through a descriptor that stays open; 0 or -errno. */
int pull(const struct source *s, void *start, size_t length, unsigned int flags);
/* As that, for a source that has only been told the number of the other. */
int pull_pid(pid_t pid, void *start, size_t length);
/* As pull(), with the whole request to look at afterwards. */
int pull_request(struct bunshin_cow_range *request);
struct bunshin_cow_range request_for(const struct source *s, void *start, size_t length);
int device_open(void);

/* Private anonymous memory at that place, read-write unless prot says else. */
char *map_at(void *at, size_t length, int flags);
/* Every 8 bytes of every page differ from every other's and from another seed's. */
void fill(void *start, size_t length, uint64_t seed);
bool filled(const void *start, size_t length, uint64_t seed);

/* One number out of a file of "key: value" or "key value" lines; exits if absent. */
long number_in(const char *path, const char *key);
/* A cgroup v2 file's only number. */
long number_of(const char *path);
void write_file(const char *path, const char *text);
uint64_t pagemap(pid_t pid, const void *at);
#define PAGEMAP_PRESENT (1ULL << 63)
#define PAGEMAP_SWAPPED (1ULL << 62)
#define PAGEMAP_FILE (1ULL << 61)
#define PAGEMAP_PFN ((1ULL << 55) - 1)

/* A cgroup v2 directory, made if it is not there; this process or pid enters it. */
void cgroup_make(const char *name);
void cgroup_enter(const char *name, pid_t pid);
char *cgroup_file(const char *name, const char *file);

_Noreturn void fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(condition, ...)                                          \
	do {                                                           \
		if (!(condition))                                      \
			fail(__FILE__, __LINE__, #condition ": " __VA_ARGS__); \
	} while (0)
#define CHECK_IS(value, expected)                                              \
	do {                                                                   \
		long value_ = (long)(value), expected_ = (long)(expected);     \
		if (value_ != expected_)                                       \
			fail(__FILE__, __LINE__, "%s is %ld, not %ld", #value, \
			     value_, expected_);                               \
	} while (0)

struct test {
	const char *name;
	void (*run)(void);
};

extern const struct test abi_tests[], kind_tests[], refusal_tests[], isolation_tests[], life_tests[],
	memory_tests[], race_tests[];
