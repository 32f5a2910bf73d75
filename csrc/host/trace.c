/* SPDX-License-Identifier: Apache-2.0 */
#include "host/trace.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define PHASES_MAX (sizeof(((struct bsh_trace *)0)->phases) / sizeof(struct bsh_phase))

void bsh_trace_start(struct bsh_trace *trace)
{
	memset(trace, 0, sizeof(*trace));
	trace->start_ns = bsh_now_ns();
}

int bsh_trace_begin(struct bsh_trace *trace, const char *name)
{
	struct bsh_phase *phase;

	/* What does not fit is not recorded; the operation itself goes on. */
	if (!trace || trace->n_phases >= PHASES_MAX)
		return -1;
	phase = &trace->phases[trace->n_phases];
	snprintf(phase->name, sizeof(phase->name), "%s", name);
	phase->start_ns = bsh_trace_elapsed_ns(trace);
	return (int)trace->n_phases++;
}

void bsh_trace_end(struct bsh_trace *trace, int phase)
{
	if (!trace || phase < 0 || (unsigned int)phase >= trace->n_phases)
		return;
	trace->phases[phase].length_ns = bsh_trace_elapsed_ns(trace) - trace->phases[phase].start_ns;
}

long long bsh_trace_elapsed_ns(const struct bsh_trace *trace)
{
	return bsh_now_ns() - trace->start_ns;
}

void bsh_trace_report(const struct bsh_trace *trace, struct bsh_fork_stats *stats)
{
	stats->total_ns = bsh_trace_elapsed_ns(trace);
	stats->n_phases = trace->n_phases;
	memcpy(stats->phases, trace->phases, sizeof(stats->phases));
}
