/* SPDX-License-Identifier: Apache-2.0 */
#include "host/advice.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

/* An engine's words for it, and a limit as sysctl(8) names it. */
static const struct {
	const char *said;
	const char *because;
	const char *name;
	const char *least;
	int code;
} limits[] = {
	{"Can't create inotify", "Too many open files", "fs.inotify.max_user_instances", "1024", EMFILE},
	{"Can't add watch", "No space left on device", "fs.inotify.max_user_watches", "524288", ENOSPC},
	{"Can't fork for", "Resource temporarily unavailable", "kernel.pid_max", "4194304", EAGAIN},
};

static char *value_of(const char *name)
{
	auto_free char *path = bsh_format("/proc/sys/%s", name);
	char *text = NULL;

	for (char *dot = path; (dot = strchr(dot, '.'));)
		*dot = '/';
	if (bsh_read_file(AT_FDCWD, path, &text, NULL, NULL) < 0)
		return bsh_strdup("unknown");
	text[strcspn(text, "\n")] = '\0';
	return text;
}

int bsh_advise(struct bsh_error *err, int rc)
{
	if (!err || rc >= 0)
		return rc;
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		auto_free char *value = NULL;
		auto_free char *why = NULL;

		if (!strstr(err->msg, limits[i].said) || !strstr(err->msg, limits[i].because))
			continue;
		value = value_of(limits[i].name);
		/* The engine's words as they are, since they say what it was for. */
		why = bsh_strdup(err->msg);
		return bsh_fail(err, limits[i].code, "%s is %s, too few: raise it, sysctl -w %s=%s; %.300s",
			limits[i].name, value, limits[i].name, limits[i].least, why);
	}
	return rc;
}
