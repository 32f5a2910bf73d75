# SPDX-License-Identifier: Apache-2.0
"""Gymnasium's AsyncVectorEnv over BrowserGym's MiniWoB: the same episodes as bench/vector.py; prints one JSON object.

Runs in an environment of its own, which bench/vector.py makes. BrowserGym offers no way to name the browser of its
second window (the chat), so that Playwright's launch is given the system's Chromium for both.

    python browsergym_vector.py PAGES CHROMIUM NUM_ENVS RESETS STEPS THINK_S
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv

QUIET = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-crash-reporter",
    "--password-store=basic",
]


def make(chromium: str) -> gymnasium.Env[Any, Any]:
    """One env, in a worker process."""
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch

    def launch_this(self: BrowserType, **options: Any) -> Any:
        return launch(self, **{**options, "executable_path": chromium, "args": [*options.get("args", []), *QUIET]})

    BrowserType.launch = launch_this
    import browsergym.miniwob  # noqa: F401  # registers the environments

    # Its own five seconds for a page are too few where sixteen browsers start at once.
    return gymnasium.make("browsergym/miniwob.click-test-2", headless=True, timeout=120_000)


def main() -> None:
    """Measures."""
    pages, chromium, num_envs, resets, steps, think_s = sys.argv[1:]
    import functools
    import os

    os.environ["MINIWOB_URL"] = f"{Path(pages).as_uri()}/"
    envs = AsyncVectorEnv([functools.partial(make, chromium)] * int(num_envs), shared_memory=False, context="spawn")
    found: dict[str, list[float]] = {"reset": [], "step": []}
    for number in range(int(resets)):
        begun = time.monotonic()
        envs.reset(seed=1000 * number)
        found["reset"].append(time.monotonic() - begun)
        for _ in range(int(steps)):
            time.sleep(float(think_s))
            begun = time.monotonic()
            envs.step(["mouse_move(5, 5)"] * int(num_envs))
            found["step"].append(time.monotonic() - begun)
    envs.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
