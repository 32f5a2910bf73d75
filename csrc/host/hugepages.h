/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Mappings of huge pages that the administrator set aside (hugetlb); the kernel's own, of plain memory, need no care.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct bsh_error;

struct bsh_huge_mapping {
	uint64_t start; /* addresses of the other process: never ours to follow */
	uint64_t end;
	uint64_t page_bytes;
};

/* The first that a process has: 1, or 0: none, it has ended, or the kernel cannot tell (before 6.11). */
int bsh_huge_mapping_find_if_alive(pid_t pid, struct bsh_huge_mapping *ret_mapping, struct bsh_error *err);
/* Is there one more huge page of this size? */
bool bsh_huge_page_is_free(uint64_t page_bytes);
