/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_PARASITE_H
#define BUNSHIN_PARASITE_H
/* Included by the parasite blob alone. */

#define BUNSHIN_PKEYS 0xfffeu /* key 0 is everybody's */

/*
 * Nobody tells which keys a process has; those that it can still get it has not. The parasite itself may then use what
 * is behind each of them: it reads the process's memory. Its registers are given back to the thread when it ends.
 */
static unsigned int bunshin_pkeys(void)
{
	unsigned int left = 0, i;
	long key;

	while ((key = sys_pkey_alloc(0, 0)) >= 0)
		left |= 1u << key;
	for (i = 0; i < 32; i++)
		if (left & 1u << i)
			sys_pkey_free(i);
#ifdef __x86_64__
	asm volatile(".byte 0x0f, 0x01, 0xef" : : "a"(0), "c"(0), "d"(0) : "memory"); /* wrpkru */
#endif
	return BUNSHIN_PKEYS & ~left;
}

#endif
