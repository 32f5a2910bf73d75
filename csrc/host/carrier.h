/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * A dump or a restore holds a workspace's processes as their tracer. When they are killed meanwhile it waits for
 * a stop that will not come, and keeps the dead ones from being reaped, which the end of their process 1 waits for:
 * neither ends. Whoever waits for one of them does it here.
 */
#include <sys/types.h>

/* Returns once fd can be read or timeout_ms are over; ends what holds on to init if that has begun to exit. */
void bsh_carrier_watch(int fd, pid_t init, int timeout_ms);
