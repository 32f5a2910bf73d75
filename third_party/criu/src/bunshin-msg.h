/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_MSG_H
#define BUNSHIN_MSG_H

#include <stddef.h>
#include <sys/types.h>

/* One packet with descriptors; 0 or -1 with errno. */
int bunshin_msg_send(int socket, const void *data, size_t len, const int *fds, unsigned int n_fds);
/* Bytes, 0 when the other end is gone, -1 with errno. n_fds: room; how many came. */
ssize_t bunshin_msg_receive(int socket, void *data, size_t room, int *fds, unsigned int *n_fds);

#endif
