/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/api.h"

static void append_reason(struct bsh_error *err, int code)
{
	size_t used = strlen(err->msg);
	char reason[96];

	snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", strerror_r(code, reason, sizeof(reason)));
}

int bsh_fail(struct bsh_error *err, int code, const char *fmt, ...)
{
	va_list args;

	if (!err)
		return -code;
	err->code = code;
	va_start(args, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, args);
	va_end(args);
	append_reason(err, code);
	return -code;
}

int bsh_context(struct bsh_error *err, int rc, const char *fmt, ...)
{
	char inner[sizeof(err->msg)];
	va_list args;
	int used;

	if (!err)
		return rc;
	memcpy(inner, err->msg, sizeof(inner));
	va_start(args, fmt);
	used = vsnprintf(err->msg, sizeof(err->msg), fmt, args);
	va_end(args);
	if (used >= 0 && (size_t)used + 2 < sizeof(err->msg))
		snprintf(err->msg + used, sizeof(err->msg) - (size_t)used, ": %.*s",
			(int)(sizeof(err->msg) - (size_t)used - 3), inner);
	return rc;
}
