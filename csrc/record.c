/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a record and back. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "registry.h"

void bsh_record_release(struct bsh_record *record)
{
	if (!record)
		return;
	free(record->id);
	bsh_strv_free(record->layers);
	bsh_strv_free(record->deltas);
	bsh_strv_free(record->env);
	free(record->label);
	free(record->hostname);
	free(record->engine);
	free(record->parent);
	*record = (struct bsh_record){0};
}

void bsh_record_copy(struct bsh_record *ret_copy, const struct bsh_record *record)
{
	struct bsh_record copy = *record;

	copy.id = bsh_strdup(record->id);
	copy.layers = bsh_strv_copy((const char *const *)record->layers);
	copy.deltas = bsh_strv_copy((const char *const *)record->deltas);
	copy.env = bsh_strv_copy((const char *const *)record->env);
	copy.label = bsh_strdup(record->label);
	copy.hostname = bsh_strdup(record->hostname);
	copy.engine = bsh_strdup(record->engine);
	copy.parent = bsh_strdup(record->parent);
	*ret_copy = copy;
}

/* One line: a newline in the value becomes \n, a backslash \\. */
static void add_text(struct bsh_buffer *buffer, const char *key, const char *value)
{
	if (!value)
		return;
	bsh_buffer_printf(buffer, "%s=", key);
	for (; *value; value++) {
		if (*value == '\n')
			bsh_buffer_add(buffer, "\\n", 2);
		else if (*value == '\\')
			bsh_buffer_add(buffer, "\\\\", 2);
		else
			bsh_buffer_add(buffer, value, 1);
	}
	bsh_buffer_add(buffer, "\n", 1);
}

static void add_owner(struct bsh_buffer *buffer, const char *key, const struct bsh_owner *owner)
{
	if (owner->pid)
		bsh_buffer_printf(buffer, "%s=%d %llu %s\n", key, owner->pid, owner->start_time, owner->boot_id);
}

char *bsh_record_format(const struct bsh_record *record)
{
	struct bsh_buffer buffer = {0};

	add_text(&buffer, "id", record->id);
	add_owner(&buffer, "owner", &record->owner);
	add_owner(&buffer, "init", &record->init);
	add_owner(&buffer, "pool", &record->pool);
	for (size_t i = 0; record->layers && record->layers[i]; i++)
		add_text(&buffer, "layer", record->layers[i]);
	for (size_t i = 0; record->deltas && record->deltas[i]; i++)
		add_text(&buffer, "delta", record->deltas[i]);
	for (size_t i = 0; record->env && record->env[i]; i++)
		add_text(&buffer, "env", record->env[i]);
	add_text(&buffer, "label", record->label);
	add_text(&buffer, "hostname", record->hostname);
	add_text(&buffer, "engine", record->engine);
	add_text(&buffer, "parent", record->parent);
	bsh_buffer_printf(&buffer,
		"pids_max=%u\ncpu_weight=%u\nmemory_max_bytes=%llu\nshm_bytes=%llu\ncreated_ns=%lld\n",
		record->pids_max, record->cpu_weight, record->memory_max_bytes, record->shm_bytes, record->created_ns);
	return buffer.text;
}

static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (*text == '\\' && text[1]) {
			text++;
			*to++ = *text == 'n' ? '\n' : *text;
		} else {
			*to++ = *text;
		}
	}
	*to = '\0';
}

static bool parse_owner(const char *value, struct bsh_owner *owner)
{
	return sscanf(value, "%d %llu %39s", &owner->pid, &owner->start_time, owner->boot_id) == 3;
}

static void replace(char **slot, const char *value)
{
	free(*slot);
	*slot = bsh_strdup(value);
}

/* Unknown keys are of a newer version and are left out. */
static bool parse_line(struct bsh_record *record, const char *key, char *value)
{
	const struct {
		const char *key;
		char **slot;
	} texts[] = {{"id", &record->id}, {"label", &record->label}, {"hostname", &record->hostname},
		{"engine", &record->engine}, {"parent", &record->parent}};

	if (strcmp(key, "owner") == 0)
		return parse_owner(value, &record->owner);
	if (strcmp(key, "init") == 0)
		return parse_owner(value, &record->init);
	if (strcmp(key, "pool") == 0)
		return parse_owner(value, &record->pool);
	unescape(value);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (strcmp(key, texts[i].key) == 0)
			replace(texts[i].slot, value);
	if (strcmp(key, "layer") == 0)
		bsh_strv_push(&record->layers, bsh_strdup(value));
	else if (strcmp(key, "delta") == 0)
		bsh_strv_push(&record->deltas, bsh_strdup(value));
	else if (strcmp(key, "env") == 0)
		bsh_strv_push(&record->env, bsh_strdup(value));
	else if (strcmp(key, "pids_max") == 0)
		record->pids_max = (unsigned int)strtoul(value, NULL, 10);
	else if (strcmp(key, "cpu_weight") == 0)
		record->cpu_weight = (unsigned int)strtoul(value, NULL, 10);
	else if (strcmp(key, "memory_max_bytes") == 0)
		record->memory_max_bytes = strtoull(value, NULL, 10);
	else if (strcmp(key, "shm_bytes") == 0)
		record->shm_bytes = strtoull(value, NULL, 10);
	else if (strcmp(key, "created_ns") == 0)
		record->created_ns = strtoll(value, NULL, 10);
	return true;
}

int bsh_record_parse(const char *text, struct bsh_record *ret_record, struct bsh_error *err)
{
	auto_free char *copy = bsh_strdup(text);
	struct bsh_record record = {
		.layers = bsh_strv_copy(NULL),
		.deltas = bsh_strv_copy(NULL),
		.env = bsh_strv_copy(NULL),
	};
	char *rest = copy, *line;

	while ((line = strsep(&rest, "\n"))) {
		char *equals = strchr(line, '=');

		if (!*line)
			continue;
		if (equals)
			*equals = '\0';
		if (!equals || !parse_line(&record, line, equals + 1)) {
			bsh_record_release(&record);
			return bsh_fail(err, EINVAL, "parse \"%.60s\"", line);
		}
	}
	if (!record.id || !record.owner.pid) {
		bsh_record_release(&record);
		return bsh_fail(err, EINVAL, "no id or no owner");
	}
	*ret_record = record;
	return 0;
}
