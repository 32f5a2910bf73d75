/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/api.h"
#include "base/error.h"

static const char *const names[BSH_FAULT_COUNT] = {
	[BSH_FAULT_SNAPSHOT_REGISTERED] = "snapshot-registered",
	[BSH_FAULT_LAYER_AHEAD] = "layer-ahead",
	[BSH_FAULT_ENGINE_PREPARED] = "engine-prepared",
	[BSH_FAULT_FROZEN] = "frozen",
	[BSH_FAULT_LAYER_FROZEN] = "layer-frozen",
	[BSH_FAULT_RECORDED] = "recorded",
	[BSH_FAULT_THAWED] = "thawed",
	[BSH_FAULT_FINISHED] = "finished",
	[BSH_FAULT_BRANCH_REGISTERED] = "branch-registered",
	[BSH_FAULT_BRANCH_RUNNING] = "branch-running",
	[BSH_FAULT_BRANCH_ADOPTED] = "branch-adopted",
};

/* One for the process: which thread hits it is the test's affair. */
static _Atomic int armed = -1;

const char *bsh_fault_name(unsigned int index)
{
	return index < BSH_FAULT_COUNT ? names[index] : NULL;
}

int bsh_fault_arm(const char *name, struct bsh_error *err)
{
	if (!name) {
		armed = -1;
		return 0;
	}
	for (int i = 0; i < BSH_FAULT_COUNT; i++) {
		if (!strcmp(names[i], name)) {
			armed = i;
			return 0;
		}
	}
	return bsh_fail(err, EINVAL, "no fault point \"%s\"", name);
}

int bsh_fault_hit(enum bsh_fault point, struct bsh_error *err)
{
	int expected = (int)point;

	if (!atomic_compare_exchange_strong(&armed, &expected, -1))
		return 0;
	return bsh_fail(err, EIO, "fault point %s", names[point]);
}
