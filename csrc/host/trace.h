/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Records the phases of one operation; used by one thread at a time. */
#include "base/api.h"

struct bsh_trace {
	long long start_ns;
	unsigned int n_phases;
	struct bsh_phase phases[32];
};

void bsh_trace_start(struct bsh_trace *trace);
/* Begins a phase and returns its index for bsh_trace_end. Phases may nest. Takes NULL. */
int bsh_trace_begin(struct bsh_trace *trace, const char *name);
void bsh_trace_end(struct bsh_trace *trace, int phase);
long long bsh_trace_elapsed_ns(const struct bsh_trace *trace);
/* Copies the phases and total_ns. */
void bsh_trace_report(const struct bsh_trace *trace, struct bsh_fork_stats *stats);
