// SPDX-License-Identifier: GPL-2.0-only
/* The gzip format without compression: a header, deflate blocks of type "stored", CRC and size. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "bunshin-gzip.h"
#include "log.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define BLOCK_BYTES 65535
static const unsigned char header[10] = { 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255 };

static uint32_t crc_update(uint32_t crc, const unsigned char *data, size_t len)
{
	static uint32_t table[256];
	size_t i;

	if (!table[1]) {
		for (i = 0; i < 256; i++) {
			uint32_t c = i;
			int k;

			for (k = 0; k < 8; k++)
				c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
			table[i] = c;
		}
	}
	crc = ~crc;
	for (i = 0; i < len; i++)
		crc = table[(crc ^ data[i]) & 255] ^ (crc >> 8);
	return ~crc;
}

static int write_all(int fd, const void *data, size_t len)
{
	while (len) {
		ssize_t put = write(fd, data, len);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0) {
			pr_perror("cannot write an archive");
			return -1;
		}
		data += put;
		len -= put;
	}
	return 0;
}

static int read_all(int fd, void *data, size_t len)
{
	while (len) {
		ssize_t got = read(fd, data, len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			pr_err("an archive ends early\n");
			return -1;
		}
		data += got;
		len -= got;
	}
	return 0;
}

int bunshin_gzip_start(struct bunshin_gzip *gz, int fd)
{
	gz->fd = fd;
	gz->crc = gz->total = 0;
	gz->n = 0;
	return write_all(fd, header, sizeof(header));
}

static int put_block(struct bunshin_gzip *gz, int last)
{
	uint16_t len = gz->n, inverse = ~len;

	gz->block[0] = last;
	memcpy(gz->block + 1, &len, 2);
	memcpy(gz->block + 3, &inverse, 2);
	gz->n = 0;
	return write_all(gz->fd, gz->block, 5 + len);
}

int bunshin_gzip_write(struct bunshin_gzip *gz, const void *data, size_t len)
{
	gz->crc = crc_update(gz->crc, data, len);
	gz->total += len;
	while (len) {
		size_t part = BLOCK_BYTES - gz->n;

		if (part > len)
			part = len;
		memcpy(gz->block + 5 + gz->n, data, part);
		gz->n += part;
		data += part;
		len -= part;
		if (gz->n == BLOCK_BYTES && put_block(gz, 0))
			return -1;
	}
	return 0;
}

int bunshin_gzip_end(struct bunshin_gzip *gz)
{
	uint32_t tail[2] = { gz->crc, gz->total };

	return put_block(gz, 1) || write_all(gz->fd, tail, sizeof(tail)) ? -1 : 0;
}

bool bunshin_gzip_is_ours(int fd)
{
	unsigned char seen[sizeof(header)];
	off_t at = lseek(fd, 0, SEEK_CUR);

	return at >= 0 && pread(fd, seen, sizeof(seen), at) == sizeof(seen) && !memcmp(seen, header, sizeof(header));
}

int bunshin_gzip_open(struct bunshin_gzip *gz, int fd)
{
	unsigned char seen[sizeof(header)];

	gz->fd = fd;
	gz->n = gz->at = 0;
	gz->last = 0;
	gz->crc = gz->total = 0;
	if (read_all(fd, seen, sizeof(seen)))
		return -1;
	if (!memcmp(seen, header, sizeof(header)))
		return 0;
	pr_err("an archive is not one of ours\n");
	return -1;
}

static int next_block(struct bunshin_gzip *gz)
{
	unsigned char head[5];
	uint16_t len, inverse;

	if (gz->last || read_all(gz->fd, head, sizeof(head)))
		return -1;
	memcpy(&len, head + 1, 2);
	memcpy(&inverse, head + 3, 2);
	if (head[0] > 1 || (len ^ inverse) != 0xffff) {
		pr_err("an archive is damaged\n");
		return -1;
	}
	gz->last = head[0];
	gz->n = len;
	gz->at = 0;
	return read_all(gz->fd, gz->block, len);
}

int bunshin_gzip_read(struct bunshin_gzip *gz, void *data, size_t len)
{
	while (len) {
		size_t part = gz->n - gz->at;

		if (!part) {
			if (next_block(gz))
				return -1;
			continue;
		}
		if (part > len)
			part = len;
		memcpy(data, gz->block + gz->at, part);
		gz->at += part;
		data += part;
		len -= part;
	}
	return 0;
}
