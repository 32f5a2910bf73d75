/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Which pages a set of processes maps, each counted once, and which of them others map too.
 * Processes are added as members of the set; the result is told for each member and for all together:
 *
 *   unique to a member: every mapping of the page is in that member
 *   unique to the set:  every mapping of the page is in some member
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct bsh_error;
struct bsh_features;

enum bsh_page_kind {
	BSH_PAGES_PRIVATE, /* anonymous */
	BSH_PAGES_SHM,	   /* shared memory: memfd, tmpfs, System V, shared anonymous */
	BSH_PAGES_FILE,
	BSH_PAGE_KINDS,
};

struct bsh_page_counts {
	uint64_t unique[BSH_PAGE_KINDS];
	uint64_t shared[BSH_PAGE_KINDS];
};

#define BSH_CENSUS_MEMBERS_MAX 65536

struct bsh_census {
	const struct bsh_features *features;
	size_t n_members;
	uint64_t *exclusive; /* of each member: private pages that are mapped once in all */
	uint64_t *mappings;  /* all others: page, member and kind in one number */
	size_t n;
	size_t size;
};

int bsh_census_init(
	struct bsh_census *census, const struct bsh_features *features, size_t n_members, struct bsh_error *err);
void bsh_census_release(struct bsh_census *census);
/* Looks through a process; -ESRCH when it has ended. */
int bsh_census_add(struct bsh_census *census, size_t member, pid_t pid, struct bsh_error *err);
/* The result; ret_members has room for each, and may be NULL. Once only. */
int bsh_census_settle(struct bsh_census *census, struct bsh_page_counts *ret_members, struct bsh_page_counts *ret_all,
	struct bsh_error *err);
