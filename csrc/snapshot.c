/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "alias.h"
#include "base/api.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/carry.h"
#include "host/trace.h"
#include "layer.h"
#include "merge.h"
#include "workspace.h"

/* One snapshot in the making. */
struct taking {
	struct bsh_workspace *ws;
	struct bsh_snapshot *snap;
	struct bsh_layer_job *layer;
	struct bsh_alias_source aliases;
	char *index, *root; /* paths in aliases */
	char **below;	    /* our own layers below the workspace */
	size_t n_merged;    /* how many they are */
	char *merged;	    /* the layer that they become; NULL while they are few */
	struct bsh_source source;
	struct bsh_carried carried;
	pid_t *pids;
	struct bsh_trace trace;
	long long frozen_ns;
	bool stacked; /* the layer is a delta on the workspace's previous one */
};

/* ---- origin ---------------------------------------------------------------- */

struct bsh_origin *bsh_origin_get(struct bsh_origin *origin)
{
	atomic_fetch_add(&origin->refs, 1);
	return origin;
}

void bsh_origin_put(void *opaque)
{
	struct bsh_origin *origin = opaque;

	if (!origin || atomic_fetch_sub(&origin->refs, 1) != 1)
		return;
	origin->engine->drop(origin->state);
	free(origin);
}

/* ---- making and giving up ----------------------------------------------------- */

/* More layers than this of our own below a workspace, and its snapshot merges them into one. */
#define LAYERS_MAX 40

bool bsh_layer_is_own(const struct bsh_core *core, const char *layer)
{
	size_t length = strlen(core->home);

	return !strncmp(layer, core->home, length) && !strncmp(layer + length, "/layers/", 8) &&
	       strncmp(layer + length, "/layers/runtime-", 16);
}

/* The layers that earlier snapshots left below the workspace; they are on top of the image's. */
static char **own_layers(const struct bsh_workspace *ws)
{
	char **own = bsh_strv_copy(NULL);

	for (char **at = ws->record.layers; *at && bsh_layer_is_own(ws->core, *at); at++)
		bsh_strv_push(&own, bsh_strdup(*at));
	return own;
}

/*
 * Top first: the layer to come, the workspace's own earlier ones if it is stacked on them, what it runs on.
 * merged, unless NULL, stands for the first n_merged of the last.
 */
static char **stack_layers(
	const struct bsh_workspace *ws, const char *layer, bool stacked, const char *merged, size_t n_merged)
{
	char **layers = bsh_strv_copy(NULL);

	bsh_strv_push(&layers, bsh_strdup(layer));
	for (char **at = ws->record.deltas; stacked && at && *at; at++)
		bsh_strv_push(&layers, bsh_strdup(*at));
	if (merged)
		bsh_strv_push(&layers, bsh_strdup(merged));
	for (char **at = ws->record.layers + (merged ? n_merged : 0); *at; at++)
		bsh_strv_push(&layers, bsh_strdup(*at));
	return layers;
}

static void fill_record(struct bsh_record *record, struct taking *take, const struct bsh_engine *engine)
{
	const struct bsh_workspace *ws = take->ws;
	auto_free char *layer = NULL;
	struct timespec now;

	bsh_record_copy(record, &ws->record);
	free(record->id);
	free(record->engine);
	free(record->parent);
	bsh_strv_free(record->layers);
	bsh_strv_free(record->deltas);
	record->id = bsh_new_id();
	record->engine = bsh_strdup(engine->name);
	record->parent = bsh_strdup(ws->record.id);
	layer = bsh_format("%s/layers/%s", ws->core->home, record->id);
	take->below = own_layers(ws);
	take->n_merged = bsh_strv_len((const char *const *)take->below);
	if (take->n_merged > LAYERS_MAX)
		take->merged = bsh_format("%s/layers/%s-merged", ws->core->home, record->id);
	record->layers = stack_layers(ws, layer, take->stacked, take->merged, take->n_merged);
	record->deltas = bsh_strv_copy(NULL);
	memset(&record->init, 0, sizeof(record->init));
	memset(&record->pool, 0, sizeof(record->pool));
	clock_gettime(CLOCK_REALTIME, &now);
	record->created_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void snapshot_release(struct bsh_snapshot *snap)
{
	bsh_record_release(&snap->record);
	bsh_affinity_release(&snap->affinity);
	pthread_mutex_destroy(&snap->lock);
	pthread_cond_destroy(&snap->idle);
	if (snap->view_fd >= 0)
		close(snap->view_fd);
	free(snap->dir);
	bsh_core_free(snap->core);
	free(snap);
}

int bsh_snapshot_register(struct bsh_core *core, struct bsh_record *record, const struct bsh_engine *engine,
	struct bsh_snapshot **ret_snap, struct bsh_error *err)
{
	struct bsh_snapshot *snap = bsh_alloc(sizeof(*snap));
	int rc;

	snap->core = bsh_core_get(core);
	snap->view_fd = -1;
	pthread_mutex_init(&snap->lock, NULL);
	pthread_cond_init(&snap->idle, NULL);
	snap->record = *record;
	*record = (struct bsh_record){0};
	snap->dir = bsh_format("%s/snapshots/%s", core->home, snap->record.id);
	snap->origin = bsh_alloc(sizeof(*snap->origin));
	snap->origin->engine = engine;
	snap->origin->refs = 1;
	rc = bsh_owner_self(&snap->record.owner, err);
	if (rc == 0)
		rc = bsh_registry_add(core->home, "snapshots", &snap->record, err);
	if (rc < 0) {
		free(snap->origin);
		snapshot_release(snap);
		return rc;
	}
	*ret_snap = snap;
	return 0;
}

static int snapshot_make(struct taking *take, const struct bsh_engine *engine, struct bsh_error *err)
{
	const struct bsh_workspace *ws = take->ws;
	struct bsh_record record;

	take->stacked = ws->layer_index && bsh_strv_len((const char *const *)ws->record.deltas) < BSH_LAYER_CHAIN_MAX;
	fill_record(&record, take, engine);
	return bsh_snapshot_register(ws->core, &record, engine, &take->snap, err);
}

int bsh_snapshot_drop(struct bsh_snapshot *snap, struct bsh_error *err)
{
	bool dropped;

	pthread_mutex_lock(&snap->lock);
	dropped = snap->dropped;
	snap->dropped = true;
	while (snap->branching)
		pthread_cond_wait(&snap->idle, &snap->lock);
	pthread_mutex_unlock(&snap->lock);
	if (dropped)
		return 0;
	bsh_origin_put(bsh_take(snap->origin));
	return bsh_registry_remove(snap->core->home, "snapshots", snap->record.id, err);
}

void bsh_snapshot_free(struct bsh_snapshot *snap)
{
	if (!snap || !bsh_core_is_ours(snap->core))
		return;
	bsh_snapshot_drop(snap, NULL);
	snapshot_release(snap);
}

const char *bsh_snapshot_id(const struct bsh_snapshot *snap)
{
	return snap->record.id;
}

const char *bsh_snapshot_dir(const struct bsh_snapshot *snap)
{
	return snap->dir;
}

const char *bsh_snapshot_engine(const struct bsh_snapshot *snap)
{
	return snap->record.engine;
}

/* ---- while the source runs ------------------------------------------------------ */

static int list_pids(struct taking *take, struct bsh_error *err)
{
	free(bsh_take(take->pids));
	take->source.n_pids = 0;
	return bsh_cgroup_pids(&take->ws->cgroup, &take->pids, &take->source.n_pids, err);
}

static int preflight(struct taking *take, struct bsh_error *err)
{
	int phase = bsh_trace_begin(&take->trace, "preflight");
	struct bsh_workspace *ws = take->ws;
	int rc = bsh_workspace_check_alive(ws, err);

	if (rc == 0 && ws->running_execs)
		rc = bsh_fail(err, EBUSY, "%u command(s) started from outside still run; wait until they have returned",
			ws->running_execs);
	if (rc == 0)
		rc = list_pids(take, err);
	if (rc == 0)
		rc = bsh_carry_check(ws->init_pid, take->pids, take->source.n_pids, err);
	bsh_trace_end(&take->trace, phase);
	return rc;
}

static void fill_aliases(struct taking *take)
{
	struct bsh_workspace *ws = take->ws;

	take->index = bsh_format("%s/work/index", ws->dir);
	take->root = bsh_format("/proc/%d/root", ws->init_pid);
	take->aliases.index = take->index;
	take->aliases.layers = ws->record.layers;
	take->aliases.root = take->root;
}

static int copy_ahead(struct taking *take, struct bsh_error *err)
{
	int phase = bsh_trace_begin(&take->trace, "files ahead");
	int rc;

	rc = bsh_layer_begin(take->ws->upper, take->snap->record.layers[0],
		take->stacked ? take->ws->layer_index : NULL, &take->layer, err);
	if (rc == 0)
		rc = bsh_layer_copy_ahead(take->layer, err);
	fill_aliases(take);
	if (rc == 0 && take->merged)
		rc = bsh_merge_layers(take->below, take->merged, err);
	if (rc == 0)
		rc = bsh_aliases_look_ahead(&take->aliases, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_LAYER_AHEAD, err);
	bsh_trace_end(&take->trace, phase);
	return rc;
}

static int capture_processors(struct taking *take, struct bsh_trace *trace, struct bsh_error *err)
{
	int phase = bsh_trace_begin(trace, "processors");
	int rc;

	bsh_affinity_release(&take->snap->affinity);
	rc = bsh_affinity_read(take->source.pid, take->pids, take->source.n_pids, &take->snap->affinity, err);
	bsh_trace_end(trace, phase);
	return rc;
}

static int capture_names(struct taking *take, struct bsh_trace *trace, struct bsh_error *err)
{
	int phase = bsh_trace_begin(trace, "names");
	int rc = bsh_aliases_add(take->layer, &take->aliases, err);

	bsh_trace_end(trace, phase);
	return rc;
}

static int capture_files(void *context, struct bsh_trace *trace, struct bsh_error *err)
{
	struct taking *take = context;
	int phase = bsh_trace_begin(trace, "files");
	int rc = bsh_layer_freeze(take->layer, take->pids, take->source.n_pids, err);

	bsh_trace_end(trace, phase);
	if (rc == 0)
		rc = capture_names(take, trace, err);
	if (rc == 0)
		rc = capture_processors(take, trace, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_LAYER_FROZEN, err);
	return rc;
}

static void fill_source(struct taking *take, const struct bsh_engine *engine)
{
	struct bsh_workspace *ws = take->ws;
	struct bsh_origin *origin = ws->origin;

	take->source.id = ws->record.id;
	take->source.pid = ws->init_pid;
	take->source.freezer = ws->cgroup.dirs[0];
	take->source.upper = ws->upper;
	take->source.netns_fd = ws->netns_fd;
	take->source.parent = origin && origin->engine == engine ? origin->state : NULL;
	take->source.capture_files = capture_files;
	take->source.context = take;
}

int bsh_snapshot_note_holder(struct bsh_snapshot *snap, struct bsh_error *err)
{
	const struct bsh_engine *engine = snap->origin->engine;
	int rc;

	if (!engine->holder)
		return 0;
	rc = bsh_owner_of(engine->holder(snap->origin->state), &snap->record.pool, err);
	return rc < 0 ? rc : bsh_registry_update(snap->core->home, "snapshots", &snap->record, err);
}

static int prepare_engine(struct taking *take, struct bsh_error *err)
{
	struct bsh_origin *origin = take->snap->origin;
	int phase = bsh_trace_begin(&take->trace, "prepare");
	int rc;

	fill_source(take, origin->engine);
	take->source.pids = take->pids;
	rc = origin->engine->prepare(
		&take->source, take->ws->core->criu, take->snap->dir, &take->trace, &origin->state, err);
	if (rc == 0)
		rc = bsh_snapshot_note_holder(take->snap, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_ENGINE_PREPARED, err);
	bsh_trace_end(&take->trace, phase);
	return rc;
}

/* ---- while it is frozen ------------------------------------------------------------ */

static int record_frozen(struct taking *take, struct bsh_error *err)
{
	struct bsh_origin *origin = take->snap->origin;
	int rc = bsh_fault_hit(BSH_FAULT_FROZEN, err);

	if (rc == 0)
		rc = list_pids(take, err);
	take->source.pids = take->pids;
	if (rc == 0)
		rc = origin->engine->record(origin->state, &take->source, &take->trace, &take->carried, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_RECORDED, err);
	return rc;
}

/* Whatever happens in between, the source is thawed again. */
static int record(struct taking *take, struct bsh_error *err)
{
	struct bsh_workspace *ws = take->ws;
	bool was_frozen = ws->frozen;
	struct bsh_error thaw_err = {0};
	long long start_ns = bsh_trace_elapsed_ns(&take->trace);
	int phase = bsh_trace_begin(&take->trace, "freeze");
	int rc = was_frozen ? 0 : bsh_workspace_freeze_locked(ws, err), thaw_rc = 0;

	bsh_trace_end(&take->trace, phase);
	if (rc < 0)
		return rc;
	rc = record_frozen(take, err);
	phase = bsh_trace_begin(&take->trace, "thaw");
	if (!was_frozen)
		thaw_rc = bsh_workspace_thaw_locked(ws, &thaw_err);
	bsh_trace_end(&take->trace, phase);
	take->frozen_ns = bsh_trace_elapsed_ns(&take->trace) - start_ns;
	if (rc == 0 && thaw_rc < 0) {
		if (err)
			*err = thaw_err;
		return thaw_rc;
	}
	return rc;
}

/* ---- afterwards ----------------------------------------------------------------------- */

/* From now on the workspace's next layer is a delta on this one. */
static int remember_layer(struct taking *take, struct bsh_error *err)
{
	struct bsh_workspace *ws = take->ws;
	char **deltas = bsh_strv_copy(NULL);
	int rc;

	bsh_strv_push(&deltas, bsh_strdup(take->snap->record.layers[0]));
	for (char **at = ws->record.deltas; take->stacked && at && *at; at++)
		bsh_strv_push(&deltas, bsh_strdup(*at));
	bsh_strv_free(ws->record.deltas);
	ws->record.deltas = deltas;
	bsh_layer_index_free(ws->layer_index);
	ws->layer_index = NULL;
	rc = bsh_registry_update(ws->core->home, "workspaces", &ws->record, err);
	/* A layer that no record names may go at any time: without an index nothing is stacked on it. */
	if (rc == 0)
		ws->layer_index = bsh_layer_take_index(take->layer);
	return rc;
}

/* The layer was to be a delta, and could not be one. */
static int restack(struct taking *take, struct bsh_error *err)
{
	struct bsh_record *record = &take->snap->record;
	char **layers;

	if (!take->stacked || !bsh_layer_is_whole(take->layer))
		return 0;
	take->stacked = false;
	layers = stack_layers(take->ws, record->layers[0], false, take->merged, take->n_merged);
	bsh_strv_free(record->layers);
	record->layers = layers;
	return bsh_registry_update(take->ws->core->home, "snapshots", record, err);
}

static int finish(struct taking *take, struct bsh_error *err)
{
	struct bsh_origin *origin = take->snap->origin;
	int phase = bsh_trace_begin(&take->trace, "finish");
	int rc = bsh_fault_hit(BSH_FAULT_THAWED, err);

	if (rc == 0)
		rc = origin->engine->finish(origin->state, &take->trace, &take->carried, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_FINISHED, err);
	if (rc == 0)
		rc = restack(take, err);
	if (rc == 0)
		rc = remember_layer(take, err);
	bsh_trace_end(&take->trace, phase);
	return rc;
}

static int take_steps(struct taking *take, const struct bsh_engine *engine, struct bsh_error *err)
{
	int rc = preflight(take, err);

	if (rc == 0)
		rc = snapshot_make(take, engine, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_SNAPSHOT_REGISTERED, err);
	if (rc == 0)
		rc = copy_ahead(take, err);
	if (rc == 0)
		rc = prepare_engine(take, err);
	if (rc == 0)
		rc = record(take, err);
	if (rc == 0)
		rc = finish(take, err);
	return rc;
}

/* A socket that came up after the preflight, and whose other end is not in the workspace. */
static bool is_late_connection(int rc, const struct bsh_error *err)
{
	const char *at = rc == -EIO && err ? strstr(err->msg, "Unix socket ") : NULL;

	return at && strstr(at, " not found");
}

/* When the source died meanwhile, that is what to say, whatever failed first. */
static int explain(const struct taking *take, int rc, struct bsh_error *err)
{
	struct bsh_error dead = {0};

	if (rc == 0)
		return rc;
	if (bsh_workspace_check_alive(take->ws, &dead) == 0)
		return is_late_connection(rc, err)
			       ? bsh_fail(err, EBUSY,
					 "something outside connected to the workspace meanwhile, as a tool call does; "
					 "try again once it has returned")
			       : rc;
	if (err)
		*err = dead;
	return -dead.code;
}

static void report(const struct taking *take, struct bsh_fork_stats *stats)
{
	if (!stats)
		return;
	memset(stats, 0, sizeof(*stats));
	bsh_trace_report(&take->trace, stats);
	stats->frozen_ns = take->frozen_ns;
	stats->copied_bytes = take->carried.copied_bytes;
	stats->shared_bytes = take->carried.shared_bytes;
	stats->layer_bytes = bsh_layer_copied_bytes(take->layer);
}

int bsh_snapshot_take(struct bsh_workspace *ws, const char *engine_name, struct bsh_snapshot **ret_snap,
	struct bsh_fork_stats *ret_stats, struct bsh_error *err)
{
	struct taking take = {.ws = ws};
	const struct bsh_engine *engine;
	int rc;

	bsh_trace_start(&take.trace);
	rc = bsh_engine_find(engine_name, &engine, err);
	if (rc == 0)
		rc = engine->probe(ws->core->criu, err);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&ws->lock);
	rc = explain(&take, take_steps(&take, engine, err), err);
	pthread_mutex_unlock(&ws->lock);
	if (rc == 0) {
		report(&take, ret_stats);
		*ret_snap = bsh_take(take.snap);
	}
	bsh_layer_job_free(take.layer);
	bsh_snapshot_free(take.snap);
	free(take.pids);
	free(take.index);
	free(take.root);
	bsh_strv_free(take.below);
	free(take.merged);
	return rc < 0 ? bsh_context(err, rc, "snapshot of %s", ws->record.id) : 0;
}
