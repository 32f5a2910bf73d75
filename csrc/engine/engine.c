/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/api.h"

/* The first one is the default. */
static const struct bsh_engine *const engines[] = {
	&bsh_engine_pool,
	&bsh_engine_criu,
	&bsh_engine_kmod,
};

int bsh_engine_find(const char *name, const struct bsh_engine **ret_engine, struct bsh_error *err)
{
	char known[128] = "";
	size_t used = 0;

	if (!name) {
		*ret_engine = engines[0];
		return 0;
	}
	for (size_t i = 0; i < sizeof(engines) / sizeof(*engines); i++) {
		if (!strcmp(engines[i]->name, name)) {
			*ret_engine = engines[i];
			return 0;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", engines[i]->name);
	}
	return bsh_fail(err, EINVAL, "no engine \"%s\"; there are: %s", name, known);
}

const char *bsh_engine_name(unsigned int index)
{
	return index < sizeof(engines) / sizeof(*engines) ? engines[index]->name : NULL;
}
