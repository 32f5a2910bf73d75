/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_TAR_H
#define BUNSHIN_TAR_H

/*
 * Writes all below a directory as a gzip-compressed tar archive that CRIU's own restore (which
 * runs tar) can read; nothing is really compressed, so both ways take no time to speak of.
 */
int bunshin_tar_write(int dir_fd, int out_fd);
/* Unpacks what bunshin_tar_write() made. */
int bunshin_tar_read(int in_fd, int dir_fd);

#endif
