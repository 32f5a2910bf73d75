/* SPDX-License-Identifier: Apache-2.0 */
/* A workspace that runs beside more important ones: its weights, its sudden end, whether it wanted out. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/text.h"
#include "workspace.h"

#define OWN_IO_WEIGHT 100

static unsigned int own_cpu_weight(const struct bsh_workspace *ws)
{
	return ws->record.cpu_weight ? ws->record.cpu_weight : 100;
}

int bsh_workspace_weigh_locked(
	struct bsh_workspace *ws, unsigned int cpu_weight, unsigned int io_weight, struct bsh_error *err)
{
	auto_free char *name = bsh_format("%s/%s", ws->core->cgroup_base, ws->record.id);
	int rc;

	if (cpu_weight > 10000 || io_weight > 10000)
		return bsh_fail(
			err, EINVAL, "weights are from 1 to 10000, not %u of CPU and %u of IO", cpu_weight, io_weight);
	rc = bsh_cgroup_weigh(ws->core->features, name, cpu_weight, io_weight, err);
	if (rc == 0 && cpu_weight)
		ws->cpu_weight_now = cpu_weight == own_cpu_weight(ws) ? 0 : cpu_weight;
	if (rc == 0 && io_weight)
		ws->io_weight_now = io_weight == OWN_IO_WEIGHT ? 0 : io_weight;
	return rc;
}

static void weigh_quietly(const struct bsh_workspace *ws, unsigned int cpu_weight, unsigned int io_weight)
{
	auto_free char *name = bsh_format("%s/%s", ws->core->cgroup_base, ws->record.id);

	bsh_cgroup_weigh(ws->core->features, name, cpu_weight, io_weight, NULL);
}

void bsh_workspace_hasten(struct bsh_workspace *ws)
{
	if (ws->cpu_weight_now || ws->io_weight_now)
		weigh_quietly(ws, own_cpu_weight(ws), OWN_IO_WEIGHT);
}

void bsh_workspace_relax(struct bsh_workspace *ws)
{
	if (ws->cpu_weight_now || ws->io_weight_now)
		weigh_quietly(ws, ws->cpu_weight_now, ws->io_weight_now);
}

int bsh_workspace_weigh_own(struct bsh_workspace *ws, struct bsh_error *err)
{
	return bsh_workspace_weigh_locked(ws, own_cpu_weight(ws), OWN_IO_WEIGHT, err);
}

int bsh_workspace_weigh(
	struct bsh_workspace *ws, unsigned int cpu_weight, unsigned int io_weight, struct bsh_error *err)
{
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_check_alive(ws, err);
	if (rc == 0)
		rc = bsh_workspace_weigh_locked(
			ws, cpu_weight ? cpu_weight : own_cpu_weight(ws), io_weight ? io_weight : OWN_IO_WEIGHT, err);
	pthread_mutex_unlock(&ws->lock);
	return rc < 0 ? bsh_context(err, rc, "weigh %s", ws->record.id) : 0;
}

int bsh_workspace_kill(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&ws->lock);
	/* Once stopped it has no cgroup any more. */
	if (ws->init_pid) {
		bsh_workspace_hasten(ws);
		rc = bsh_cgroup_kill(&ws->cgroup, NULL, err);
	}
	pthread_mutex_unlock(&ws->lock);
	return rc < 0 ? bsh_context(err, rc, "kill %s", ws->record.id) : 0;
}

/* The number below a name in a table of /proc/net/snmp: a line "Ip: Name Name ...", then "Ip: 1 2 ...". */
static unsigned long long column(const char *text, const char *table, const char *name)
{
	const char *names = strstr(text, table), *values = names ? strchr(names, '\n') : NULL;
	size_t len = strlen(name);

	if (!values)
		return 0;
	for (const char *at = names, *value = values + 1; at && value && at < values;
		at = strchr(at + 1, ' '), value = strchr(value + 1, ' '))
		if (strncmp(at + 1, name, len) == 0 && (at[1 + len] == ' ' || at[1 + len] == '\n'))
			return strtoull(value + 1, NULL, 10);
	return 0;
}

int bsh_workspace_escapes(struct bsh_workspace *ws, unsigned long long *ret_count, struct bsh_error *err)
{
	auto_free char *path = NULL, *path6 = NULL, *text = NULL, *text6 = NULL;
	const char *line;
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_check_alive(ws, err);
	path = bsh_format("/proc/%d/net/snmp", ws->init_pid);
	path6 = bsh_format("/proc/%d/net/snmp6", ws->init_pid);
	if (rc == 0)
		rc = bsh_read_file(AT_FDCWD, path, &text, NULL, err);
	pthread_mutex_unlock(&ws->lock);
	if (rc < 0)
		return bsh_context(err, rc, "ask whether %s wanted out", ws->record.id);
	*ret_count = column(text, "Ip: ", "OutNoRoutes");
	if (bsh_read_file(AT_FDCWD, path6, &text6, NULL, NULL) < 0) /* a kernel without IPv6 */
		return 0;
	line = strstr(text6, "Ip6OutNoRoutes");
	if (line)
		*ret_count += strtoull(line + strlen("Ip6OutNoRoutes"), NULL, 10);
	return 0;
}
