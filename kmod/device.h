/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_DEVICE_H
#define BSH_DEVICE_H

/* Makes /dev/bunshin appear; from then on it may be opened. */
int bsh_device_init(void);
void bsh_device_exit(void);

#endif
