/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Feeds a command's input and gathers its output until it ends. */
#include <stdbool.h>

#include "base/text.h"

struct bsh_error;

struct bsh_pump {
	int pidfd;
	int fds[3]; /* our ends of its standard streams, non-blocking; the pump's to close */
	const char *input;
	unsigned long long input_len;
	unsigned long long output_max; /* of each stream */
	struct bsh_buffer outputs[2];
	bool truncated;
};

/* Until the command ends (what it leaves running may keep the pipes open); -ETIMEDOUT, without a message. timeout_ms <
 * 0: none. */
int bsh_pump_run(struct bsh_pump *pump, long long timeout_ms, struct bsh_error *err);
/* What is in the pipes already. */
void bsh_pump_drain(struct bsh_pump *pump);
void bsh_pump_close(struct bsh_pump *pump);
