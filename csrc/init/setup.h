/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Makes what a workspace finds around it: mounts, device nodes, host name. Reports and exits on failure. */
void bsh_init_setup(int report_fd, const char *hostname, const char *shm_bytes);
