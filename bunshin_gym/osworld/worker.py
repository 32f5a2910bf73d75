# SPDX-License-Identifier: Apache-2.0
"""Runs OSWorld's own set-up and evaluation; run by the Python of the evaluation environment, never imported by ours.

One JSON line a request on standard input, one a reply on standard output:

    {op: "setup" | "evaluate", task, ports: {server, chromium, vlc}, cache, password, screen: [w, h], history}
    {ok: true, value} | {ok: false, error}
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any

# Large, and used by a few metrics only: what wants one of them says so when it is used.
_OPTIONAL = ("acoustid", "borb", "easyocr", "fastdtw", "librosa", "pyacoustid")


class _Absent(types.ModuleType):
    """A module that is not installed: its names are there, and fail when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def fail(*_: object, **__: object) -> Any:
            raise ModuleNotFoundError(f"this metric wants {self.__name__}, which the evaluation environment has not")

        return fail


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in _OPTIONAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _environment(request: dict[str, Any]) -> Any:
    """An object that OSWorld's code takes for its environment: its class, without a virtual machine behind it."""
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController
    from desktop_env.desktop_env import DesktopEnv

    ports, (width, height) = request["ports"], request["screen"]
    env = DesktopEnv.__new__(DesktopEnv)
    env.vm_ip = "127.0.0.1"
    env.server_port, env.chromium_port, env.vlc_port = ports["server"], ports["chromium"], ports["vlc"]
    env.cache_dir_base = env.cache_dir = request["cache"]
    env.enable_proxy = env.current_use_proxy = env.is_environment_used = False
    env.client_password = request["password"]
    env.screen_width, env.screen_height = width, height
    env.controller = PythonController(vm_ip=env.vm_ip, server_port=env.server_port)
    env.controller.retry_interval = 0.5
    env.setup_controller = SetupController(
        vm_ip=env.vm_ip,
        server_port=env.server_port,
        chromium_port=env.chromium_port,
        vlc_port=env.vlc_port,
        cache_dir=env.cache_dir,
        client_password=env.client_password,
        screen_width=width,
        screen_height=height,
    )
    env.action_history = request.get("history", [])
    env._set_task_info(request["task"])
    env.setup_controller.reset_cache_dir(env.cache_dir)
    return env


def _handle(request: dict[str, Any]) -> Any:
    env = _environment(request)
    if request["op"] == "setup":
        if not env.setup_controller.setup(env.config, False):
            raise RuntimeError("the endpoint does not answer")
        return None
    if request["op"] == "evaluate":
        value = env.evaluate()
        return float(value if value is not None else 0.0)
    raise ValueError(f"no such request: {request['op']}")


def main() -> None:
    """Answers until the other side closes."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what OSWorld's code prints is for the log
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.meta_path.append(_AbsentFinder())
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            try:
                reply = {"ok": True, "value": _handle(json.loads(line))}
            except Exception as error:  # noqa: BLE001 - told to the other side
                traceback.print_exc()
                reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
