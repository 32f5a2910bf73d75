/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* How processes get into a workspace. */
#include "workspace.h"

/* Runs init with the spec's command in a prepared workspace and adopts it. */
int bsh_start_init(struct bsh_workspace *ws, const struct bsh_workspace_spec *spec, struct bsh_error *err);
