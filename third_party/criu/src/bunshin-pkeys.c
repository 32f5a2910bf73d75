// SPDX-License-Identifier: GPL-2.0-only
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bunshin-pkeys.h"

void bunshin_pkey_parse(const char *line, VmaEntry *vma)
{
	vma->bunshin_pkey = atoi(line + strlen("ProtectionKey:"));
	vma->has_bunshin_pkey = vma->bunshin_pkey != 0;
}

bool bunshin_has_pkeys(void)
{
	static int has = -1;

	if (has < 0) {
		long key = syscall(__NR_pkey_alloc, 0, 0);

		has = key >= 0 && !syscall(__NR_pkey_free, key);
	}
	return has;
}
