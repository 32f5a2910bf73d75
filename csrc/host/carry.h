/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * What no engine can carry into a branch. Looked for while the source still
 * runs, so that a refusal costs it nothing; what changes between this look and the freeze
 * makes the engine fail, which the source survives as well.
 */
#include <sys/types.h>

struct bsh_error;

/*
 * Checks the processes of a workspace whose init is init_pid. -EOPNOTSUPP, or
 * -EBUSY for what passes by itself, with process, pid, descriptor and advice in the message.
 */
int bsh_carry_check(pid_t init_pid, const pid_t *pids, size_t n_pids, struct bsh_error *err);
