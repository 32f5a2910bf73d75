/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* What to do about limits of the machine that an engine ran into, and could only tell by the kernel's words. */

struct bsh_error;

/* Adds to an error that a limit explains which one, its value now and how to raise it; returns the code, changed or
 * not. */
int bsh_advise(struct bsh_error *err, int rc);
