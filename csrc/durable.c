/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot as a directory, and back. bunshin.h says what is in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "merge.h"
#include "snapshot.h"
#include "workspace.h"

/* ---- saving ----------------------------------------------------------------- */

static int write_text(const char *dir, const char *name, const char *text, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s", dir, name);

	return bsh_write_file(AT_FDCWD, path, text, strlen(text), 0600, err);
}

static int save_images(struct bsh_snapshot *snap, const char *dir, struct bsh_error *err)
{
	auto_free char *images = bsh_format("%s/images", dir);

	if (mkdir(images, 0700) < 0)
		return bsh_fail(err, errno, "make %s", images);
	return snap->origin->engine->save(snap->origin->state, images, err);
}

static int save_layer(struct bsh_snapshot *snap, const char *dir, size_t n_own, struct bsh_error *err)
{
	auto_free char *layer = bsh_format("%s/layer", dir);
	auto_strv char **own = bsh_strv_copy(NULL);

	for (size_t i = 0; i < n_own; i++)
		bsh_strv_push(&own, bsh_strdup(snap->record.layers[i]));
	return bsh_merge_layers(own, layer, err);
}

static int save_record(struct bsh_snapshot *snap, const char *dir, size_t n_own, struct bsh_error *err)
{
	auto_free char *text = NULL;
	struct bsh_record record;

	bsh_record_copy(&record, &snap->record);
	memset(&record.pool, 0, sizeof(record.pool));
	bsh_strv_free(record.layers);
	record.layers = bsh_strv_copy((const char *const *)snap->record.layers + n_own);
	text = bsh_record_format(&record);
	bsh_record_release(&record);
	return write_text(dir, "record", text, err);
}

/* One commit of the file system's journal, where an fsync for each file would be one each. */
static int sync_all(const char *dir, struct bsh_error *err)
{
	auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd) < 0)
		return bsh_fail(err, errno, "write %s to the disk", dir);
	return 0;
}

static int save(struct bsh_snapshot *snap, const char *dir, struct bsh_error *err)
{
	auto_free char *processors = bsh_affinity_format(&snap->affinity);
	size_t n_own = 0;
	int rc;

	while (snap->record.layers[n_own] && bsh_layer_is_own(snap->core, snap->record.layers[n_own]))
		n_own++;
	rc = save_images(snap, dir, err);
	if (rc == 0)
		rc = save_layer(snap, dir, n_own, err);
	if (rc == 0)
		rc = save_record(snap, dir, n_own, err);
	if (rc == 0)
		rc = write_text(dir, "processors", processors, err);
	return rc < 0 ? rc : sync_all(dir, err);
}

int bsh_snapshot_save(struct bsh_snapshot *snap, const char *dir, struct bsh_error *err)
{
	int rc = bsh_snapshot_enter(snap, err);

	if (rc < 0)
		return rc;
	rc = save(snap, dir, err);
	bsh_snapshot_leave(snap);
	return rc < 0 ? bsh_context(err, rc, "save snapshot %s", snap->record.id) : 0;
}

/* ---- loading ------------------------------------------------------------------ */

static int read_text(const char *dir, const char *name, char **ret_text, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s", dir, name);

	return bsh_read_file(AT_FDCWD, path, ret_text, NULL, err);
}

static int read_record(const char *dir, struct bsh_record *ret_record, struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = read_text(dir, "record", &text, err);

	return rc < 0 ? rc : bsh_record_parse(text, ret_record, err);
}

/* The record of what is about to be: a new id, our engine, its own layer above the base. */
static void renew_record(struct bsh_record *record, const struct bsh_core *core, const struct bsh_engine *engine,
	const char *const *base)
{
	struct timespec now;

	free(record->id);
	free(record->engine);
	bsh_strv_free(record->layers);
	record->id = bsh_new_id();
	record->engine = bsh_strdup(engine->name);
	record->layers = bsh_strv_copy(NULL);
	bsh_strv_push(&record->layers, bsh_format("%s/layers/%s", core->home, record->id));
	for (; *base; base++)
		bsh_strv_push(&record->layers, bsh_strdup(*base));
	clock_gettime(CLOCK_REALTIME, &now);
	record->created_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int load_into(struct bsh_snapshot *snap, const char *dir, struct bsh_error *err)
{
	auto_free char *images = bsh_format("%s/images", dir);
	char *layer = bsh_format("%s/layer", dir);
	auto_strv char **layers = bsh_strv_copy(NULL);
	auto_free char *processors = NULL;
	int rc;

	bsh_strv_push(&layers, layer);
	rc = bsh_merge_layers(layers, snap->record.layers[0], err);
	if (rc == 0)
		rc = read_text(dir, "processors", &processors, err);
	if (rc == 0)
		rc = bsh_affinity_parse(processors, &snap->affinity, err);
	if (rc == 0)
		rc = snap->origin->engine->load(snap->core->criu, images, snap->dir, &snap->origin->state, err);
	return rc < 0 ? rc : bsh_snapshot_note_holder(snap, err);
}

static int load(struct bsh_core *core, const char *dir, const char *engine_name, const char *const *base,
	struct bsh_snapshot **ret_snap, struct bsh_error *err)
{
	const struct bsh_engine *engine;
	struct bsh_snapshot *snap;
	struct bsh_record record;
	int rc = read_record(dir, &record, err);

	if (rc < 0)
		return rc;
	rc = bsh_engine_find(engine_name ? engine_name : record.engine, &engine, err);
	if (rc == 0)
		rc = engine->probe(core->criu, err);
	if (rc == 0) {
		renew_record(&record, core, engine, base);
		rc = bsh_snapshot_register(core, &record, engine, &snap, err);
	}
	bsh_record_release(&record);
	if (rc < 0)
		return rc;
	rc = load_into(snap, dir, err);
	if (rc < 0) {
		bsh_snapshot_free(snap);
		return rc;
	}
	*ret_snap = snap;
	return 0;
}

int bsh_snapshot_load(struct bsh_core *core, const char *dir, const char *engine, const char *const *base,
	struct bsh_snapshot **ret_snap, struct bsh_error *err)
{
	int rc = bsh_core_check(core, err);

	if (rc == 0)
		rc = load(core, dir, engine, base, ret_snap, err);
	return rc < 0 ? bsh_context(err, rc, "load a snapshot from %s", dir) : 0;
}
