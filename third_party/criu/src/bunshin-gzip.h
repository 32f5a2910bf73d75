/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_GZIP_H
#define BUNSHIN_GZIP_H
/* A gzip stream of stored blocks. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bunshin_gzip {
	int fd;
	uint32_t crc;
	uint32_t total;
	size_t n; /* bytes in block: to be written, or left to be read */
	size_t at;
	int last;
	unsigned char block[5 + 65535];
};

int bunshin_gzip_start(struct bunshin_gzip *gz, int fd);
int bunshin_gzip_write(struct bunshin_gzip *gz, const void *data, size_t len);
int bunshin_gzip_end(struct bunshin_gzip *gz);

/* Is what follows of this kind? Reads nothing. */
bool bunshin_gzip_is_ours(int fd);
int bunshin_gzip_open(struct bunshin_gzip *gz, int fd);
/* All of len, or -1. */
int bunshin_gzip_read(struct bunshin_gzip *gz, void *data, size_t len);

#endif
