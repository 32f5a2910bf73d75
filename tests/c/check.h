/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Says what failed where, and goes on; the program's exit status counts. */
#include <stdio.h>
#include <string.h>

extern int failures;

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
			failures++;                                                                                    \
		}                                                                                                      \
	} while (0)
#define CHECK_TEXT(a, b) CHECK(strcmp((a), (b)) == 0)
