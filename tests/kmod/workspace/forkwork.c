// SPDX-License-Identifier: GPL-2.0-only
/*
 * Forks a live workspace through our core with each engine in turn, and says
 * what it cost.
 *
 *   forkwork HOME CRIU RUNTIME-LAYER ROOT-LAYER MIB|display module|none ENGINE...
 *
 * With a number, the workspace is life.c with that much memory; with "display",
 * an X server and a client of it.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "include/bunshin.h"

#define BRANCHES 2

static const char *engine = "-";
static struct bsh_error error;
static char mib[16];
static const char *layers[3];

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
	va_list args;

	printf("  %s: ", engine);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\nFAIL workspace %s\n", engine);
	exit(1);
}

#define TRY(call)                                    \
	do {                                         \
		if ((call) < 0)                      \
			fail("%s: %s", #call, error.msg); \
	} while (0)

/* What a command in the workspace prints. */
static char *shell(struct bsh_workspace *ws, const char *command)
{
	static char text[1024];
	const char *argv[] = { "/bin/sh", "-c", command, NULL };
	const char *env[] = { "PATH=/usr/bin:/bin", "DISPLAY=:7", "LC_ALL=C", NULL };
	struct bsh_exec_request request = { .argv = argv, .env = env, .timeout_ms = 120000 };
	struct bsh_exec_result result = { 0 };

	TRY(bsh_workspace_exec(ws, &request, &result, &error));
	snprintf(text, sizeof(text), "%.*s", (int)result.out_len, (const char *)result.out);
	text[strcspn(text, "\n")] = '\0';
	if (result.exit_code || result.timed_out)
		fail("%s: exit code %d: %.*s", command, result.exit_code, (int)result.errout_len,
		     (const char *)result.errout);
	bsh_exec_result_release(&result);
	return text;
}

static char *ask(struct bsh_workspace *ws, const char *words)
{
	char command[128];

	snprintf(command, sizeof(command), "exec /bin/life ask %s", words);
	return shell(ws, command);
}

static void expect(struct bsh_workspace *ws, const char *words, const char *wanted)
{
	const char *got = ask(ws, words);

	if (strcmp(got, wanted))
		fail("%s of %s: %s, not %s", words, bsh_workspace_id(ws), got, wanted);
}

static struct bsh_workspace *start(struct bsh_core *core, const char *const *argv)
{
	const char *env[] = { "PATH=/usr/bin:/bin", "DISPLAY=:7", "LC_ALL=C", NULL };
	struct bsh_workspace_spec spec = { .layers = layers, .argv = argv, .env = env };
	struct bsh_workspace *ws;

	TRY(bsh_workspace_start(core, &spec, &ws, &error));
	return ws;
}

/* The main command is up once it listens. */
static struct bsh_workspace *start_life(struct bsh_core *core)
{
	const char *argv[] = { "/bin/life", mib, NULL };
	struct bsh_workspace *ws = start(core, argv);

	shell(ws, "until test -S /run/life.sock; do sleep 0.05; done");
	return ws;
}

static bool has_phase(const struct bsh_fork_stats *stats, const char *part)
{
	for (unsigned int i = 0; i < stats->n_phases; i++)
		if (strstr(stats->phases[i].name, part))
			return true;
	return false;
}

static void report(const char *what, const struct bsh_fork_stats *stats)
{
	printf("cost %s %s frozen_us %lld copied_kib %llu shared_kib %llu\n", engine, what, stats->frozen_ns / 1000,
	       stats->copied_bytes >> 10, stats->shared_bytes >> 10);
	for (unsigned int i = 0; i < stats->n_phases; i++)
		printf("  phase %-24s %8lld us\n", stats->phases[i].name, stats->phases[i].length_ns / 1000);
}

/* Nearly all memory must have come without a copy; or all with one, without the module. */
static void check_cost(const struct bsh_fork_stats *stats, bool module)
{
	unsigned long long bytes = strtoull(mib, NULL, 10) << 20;

	if (strcmp(engine, "kmod"))
		return;
	if (has_phase(stats, "kmod") == module)
		fail("the phases %s the module's absence", module ? "tell" : "do not tell");
	if (module && (stats->shared_bytes < bytes || stats->copied_bytes > bytes / 50))
		fail("%llu bytes were copied and %llu shared", stats->copied_bytes, stats->shared_bytes);
	if (!module && stats->copied_bytes < bytes)
		fail("%llu bytes were copied", stats->copied_bytes);
}

static void check_branches(struct bsh_workspace *source, struct bsh_workspace **branches)
{
	for (int i = 0; i < BRANCHES; i++) {
		expect(branches[i], "ring", "8");
		expect(branches[i], "check 1", "ok");
	}
	expect(branches[0], "touch 2 8", "ok");
	expect(source, "touch 3 8", "ok");
	expect(branches[1], "check 1", "ok");
	expect(branches[0], "check 1 8", "ok");
	expect(source, "check 1 8", "ok");
	if (!strcmp(ask(branches[0], "check 3"), "ok") || !strcmp(ask(source, "check 2"), "ok"))
		fail("a write was seen elsewhere");
}

/* A branch forks in turn; its pages are its origin's but for a few. */
static void check_second_generation(struct bsh_workspace *branch, bool module)
{
	struct bsh_fork_stats stats = { 0 };
	struct bsh_snapshot *snapshot;
	struct bsh_workspace *child;

	TRY(bsh_snapshot_take(branch, engine, &snapshot, &stats, &error));
	report("second", &stats);
	if (module && stats.copied_bytes > 16 << 20)
		fail("second generation: %llu bytes were copied", stats.copied_bytes);
	TRY(bsh_snapshot_branch(snapshot, NULL, &child, NULL, &error));
	expect(child, "check 1 8", "ok");
	expect(child, "fill 4", "ok");
	expect(child, "check 4", "ok");
	expect(branch, "check 1 8", "ok");
	TRY(bsh_workspace_stop(branch, &error));
	expect(child, "check 4", "ok");
	TRY(bsh_workspace_stop(child, &error));
	bsh_workspace_free(child);
	bsh_snapshot_free(snapshot);
}

static void run_engine(struct bsh_core *core, bool module)
{
	struct bsh_workspace *source = start_life(core), *branches[BRANCHES];
	struct bsh_fork_stats stats = { 0 };
	struct bsh_snapshot *snapshot;

	expect(source, "fill 1", "ok");
	TRY(bsh_snapshot_take(source, engine, &snapshot, &stats, &error));
	report("first", &stats);
	check_cost(&stats, module);
	for (int i = 0; i < BRANCHES; i++)
		TRY(bsh_snapshot_branch(snapshot, NULL, &branches[i], &stats, &error));
	check_branches(source, branches);
	TRY(bsh_workspace_stop(source, &error));
	expect(branches[1], "check 1", "ok");
	check_second_generation(branches[0], module);
	for (int i = 0; i < BRANCHES; i++)
		bsh_workspace_free(branches[i]);
	bsh_workspace_free(source);
	bsh_snapshot_free(snapshot);
	printf("PASS workspace %s\n", engine);
	fflush(stdout);
}

#define CLIENT "xwininfo -root -tree | grep -q XEyes"
#define NAME(who) "xprop -root -f BUNSHIN 8s -set BUNSHIN " who
#define NAMED(who) "name=$(xprop -root BUNSHIN); test \"$name\" = 'BUNSHIN(STRING) = \"" who "\"' || { echo \"$name\" >&2; false; }"

static struct bsh_workspace *start_display(struct bsh_core *core)
{
	const char *argv[] = { "/bin/sh", "-c",
			       "Xvfb :7 -screen 0 640x480x24 -extension GLX -noreset & "
			       "until xwininfo -root; do sleep 0.1; done >/dev/null 2>&1; exec xeyes",
			       NULL };
	struct bsh_workspace *ws = start(core, argv);

	shell(ws, "until " CLIENT "; do sleep 0.1; done 2>/dev/null");
	return ws;
}

/* Server and client go on with each other on both sides, and what one server is told the other does not hear. */
static void run_display(struct bsh_core *core)
{
	struct bsh_workspace *source = start_display(core), *branch;
	struct bsh_fork_stats stats = { 0 };
	struct bsh_snapshot *snapshot;

	shell(source, NAME("before"));
	TRY(bsh_snapshot_take(source, engine, &snapshot, &stats, &error));
	report("display", &stats);
	TRY(bsh_snapshot_branch(snapshot, NULL, &branch, NULL, &error));
	shell(branch, NAMED("before") " && " CLIENT " && pidof xeyes");
	shell(branch, NAME("branch"));
	shell(source, NAMED("before"));
	shell(source, NAME("source"));
	shell(branch, NAMED("branch"));
	/* A client that ends takes its window along, on its own side only. */
	shell(branch, "kill $(pidof xeyes); while " CLIENT "; do sleep 0.1; done");
	shell(source, CLIENT);
	TRY(bsh_workspace_stop(source, &error));
	shell(branch, NAMED("branch"));
	bsh_workspace_free(branch);
	bsh_workspace_free(source);
	bsh_snapshot_free(snapshot);
	printf("PASS display %s\n", engine);
}

int main(int argc, char **argv)
{
	struct bsh_core *core;
	bool module;

	if (argc < 8)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	layers[0] = argv[3];
	layers[1] = argv[4];
	snprintf(mib, sizeof(mib), "%s", argv[5]);
	module = !strcmp(argv[6], "module");
	TRY(bsh_core_open(argv[1], argv[2], &core, &error));
	for (int i = 7; i < argc; i++) {
		engine = argv[i];
		if (!strcmp(mib, "display"))
			run_display(core);
		else
			run_engine(core, module);
	}
	bsh_core_free(core);
	return 0;
}
