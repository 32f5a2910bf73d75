# SPDX-License-Identifier: Apache-2.0
"""What the cgroups of a running workspace say."""

from __future__ import annotations

from pathlib import Path

from bunshin_gym.workspace import Workspace

__all__ = ["controls"]


def controls(workspace: Workspace, *names: str) -> dict[str, str]:
    """The last word of each of these files, by name; those that this machine lacks are left out."""
    features = workspace.core.features()
    mounts = {name: mount for name, mount in features.items() if name.startswith("cgroup_v") and mount != "none"}
    found = {}
    for line in Path(f"/proc/{workspace.pid}/cgroup").read_text().splitlines():
        _, controllers, inside = line.split(":", 2)
        for mount in {mount for name, mount in mounts.items() if _serves(name, controllers)}:
            for name in names:
                path = Path(mount + inside) / name
                if path.exists():
                    found[name] = path.read_text().split()[-1]
    return found


def _serves(feature: str, controllers: str) -> bool:
    if not controllers:
        return feature == "cgroup_v2"
    return feature.removeprefix("cgroup_v1_") in controllers.split(",")
