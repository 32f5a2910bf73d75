# SPDX-License-Identifier: Apache-2.0
"""The requests that an OSWorld machine answers, each as calls of the workspace's tool server.

The image's browser is Chromium. Where tasks ask for Chrome by the name of its window or its accessibility tree,
that is the name it is shown under here.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web
from PIL import Image

from bunshin_gym.errors import BunshinError
from bunshin_gym.toolclient import decode_screenshot

__all__ = ["Routes"]

Call = Callable[[str, Mapping[str, Any], float], Awaitable[Any]]

_HOME: Final = "/home/user"
_COMMAND_TIMEOUT_S: Final = 120.0
_OPEN_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.15
_START_CPU_S: Final = 20.0
_FILE_BYTES: Final = 1 << 29
_ENDERS: Final = frozenset({"pkill", "killall"})
_CHROME: Final = (("Google Chrome", "Chromium"),)

_LIST_SCRIPT: Final = """
import json, os, sys
def tree(path):
    name = os.path.basename(path.rstrip('/'))
    if os.path.isdir(path) and not os.path.islink(path):
        inner = [tree(os.path.join(path, each)) for each in sorted(os.listdir(path))]
        return {'type': 'directory', 'name': name, 'children': inner}
    return {'type': 'file', 'name': name}
print(json.dumps(tree(sys.argv[1])))
"""


class Routes:
    """Handlers over one workspace."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def table(self) -> list[web.RouteDef]:
        """All of them."""
        gets = {"screenshot": self.screenshot, "accessibility": self.accessibility, "terminal": self.terminal}
        gets |= {"platform": self.platform, "cursor_position": self.cursor_position, "screen_size": self.screen_size}
        posts: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "execute": self.execute,
            "execute_with_verification": self.execute_with_verification,
            "run_python": self.run_python,
            "run_bash_script": self.run_bash_script,
            "file": self.file,
            "screen_size": self.screen_size,
            "window_size": self.window_size,
            "desktop_path": self.desktop_path,
            "wallpaper": self.wallpaper,
            "list_directory": self.list_directory,
        }
        setups: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "execute": self.execute,
            "execute_with_verification": self.execute_with_verification,
            "launch": self.launch,
            "open_file": self.open_file,
            "upload": self.upload,
            "activate_window": self.activate_window,
            "close_window": self.close_window,
            "change_wallpaper": self.change_wallpaper,
        }
        routes = [web.get(f"/{name}", _guarded(handler)) for name, handler in gets.items()]
        routes += [web.post(f"/{name}", _guarded(handler)) for name, handler in posts.items()]
        routes += [web.post(f"/setup/{name}", _guarded(handler)) for name, handler in setups.items()]
        for name in ("start_recording", "end_recording", "setup/download_file"):
            routes.append(web.post(f"/{name}", self.absent))
        return routes

    async def absent(self, request: web.Request) -> web.Response:
        """What this machine does not do, said as such."""
        reason = "a workspace has no network" if "download" in request.path else "use the wrapper RecordTrajectory"
        return web.json_response({"status": "error", "message": f"{request.path}: {reason}"}, status=501)

    # ---- what is seen

    async def screenshot(self, _: web.Request) -> web.Response:
        picture = Image.fromarray(decode_screenshot(await self._call("picture", {}, 30.0)))
        return web.Response(body=await asyncio.to_thread(_png, picture), content_type="image/png")

    async def accessibility(self, _: web.Request) -> web.Response:
        text = (await self._call("tree", {}, 30.0))["text"]
        for theirs, ours in _CHROME:
            text = text.replace(f'<application name="{ours}"', f'<application name="{theirs}"')
        return web.json_response({"AT": text})

    async def terminal(self, _: web.Request) -> web.Response:
        return web.json_response({"output": await self._call("terminal", {}, 30.0), "status": "success"})

    async def platform(self, _: web.Request) -> web.Response:
        return web.Response(text="Linux")

    async def cursor_position(self, _: web.Request) -> web.Response:
        words = dict(p.split("=") for p in (await self._text(["xdotool", "getmouselocation", "--shell"])).split())
        return web.json_response([int(words["X"]), int(words["Y"])])

    async def screen_size(self, _: web.Request) -> web.Response:
        width, height = (await self._text(["xdotool", "getdisplaygeometry"])).split()
        return web.json_response({"width": int(width), "height": int(height)})

    async def window_size(self, request: web.Request) -> web.Response:
        wanted = str((await request.post())["app_class_name"])
        for line in (await self._text(["wmctrl", "-lGx"])).splitlines():
            _, _, _, _, width, height, name, *_ = line.split(None, 8)
            if wanted in name:
                return web.json_response({"width": int(width), "height": int(height)})
        return web.json_response({"message": f"no window of class {wanted}"}, status=404)

    async def desktop_path(self, _: web.Request) -> web.Response:
        return web.json_response({"desktop_path": f"{_HOME}/Desktop"})

    async def wallpaper(self, _: web.Request) -> web.Response:
        schema = ["gsettings", "get", "org.gnome.desktop.background", "picture-uri"]
        path = (await self._text(schema)).strip().strip("'").removeprefix("file://")
        return await self._file(path)

    async def list_directory(self, request: web.Request) -> web.Response:
        path = (await request.json())["path"]
        text = await self._text(["python3", "-c", _LIST_SCRIPT, path])
        return web.json_response({"directory_tree": json.loads(text)})

    async def file(self, request: web.Request) -> web.Response:
        return await self._file(str((await request.post())["file_path"]))

    # ---- what is run

    async def execute(self, request: web.Request) -> web.Response:
        body = await request.json()
        done = await self._run(body["command"], bool(body.get("shell")))
        await self._rest()
        answer = {"output": done["stdout"], "error": done["stderr"], "returncode": done["exit_code"]}
        if done["timed_out"]:
            return web.json_response({"status": "error", "message": "the command took too long", **answer}, status=500)
        return web.json_response({"status": "success", **answer})

    async def execute_with_verification(self, request: web.Request) -> web.Response:
        body = await request.json()
        done = await self._run(body["command"], bool(body.get("shell")))
        wanted = body.get("verification") or {}
        end = time.monotonic() + float(body.get("max_wait_time", 10))
        verified = await self._verified(wanted)
        while not verified and time.monotonic() < end:
            await asyncio.sleep(float(body.get("check_interval", 1.0)))
            verified = await self._verified(wanted)
        answer = {"output": done["stdout"], "error": done["stderr"], "returncode": done["exit_code"]}
        status = "success" if verified else "verification_failed"
        return web.json_response({"status": status, **answer}, status=200 if verified else 500)

    async def run_python(self, request: web.Request) -> web.Response:
        source = (await request.json())["code"]
        done = await self._call("run_source", {"source": source}, _COMMAND_TIMEOUT_S)
        failed = done["exit_code"] != 0
        answer = {
            "status": "error" if failed else "success",
            "message": done["output"] + done["error"],
            "output": done["output"],
            "error": done["error"],
            "return_code": done["exit_code"],
            "need_more": False,
        }
        return web.json_response(answer, status=500 if failed else 200)

    async def run_bash_script(self, request: web.Request) -> web.Response:
        body = await request.json()
        timeout_s = float(body.get("timeout") or 30)
        args = {"command": ["/bin/bash", "-c", body["script"]], "timeout_s": timeout_s}
        done = await self._call("run", {**args, "cwd": body.get("working_dir") or ""}, timeout_s + 30)
        answer = {"output": _decoded(done["stdout"]), "error": _decoded(done["stderr"])}
        status = "success" if done["exit_code"] == 0 else "error"
        return web.json_response({"status": status, **answer, "returncode": done["exit_code"]})

    async def launch(self, request: web.Request) -> web.Response:
        body = await request.json()
        command, shell = body["command"], bool(body.get("shell"))
        argv = _argv(command, shell)
        if posixpath.basename(argv[0]) in _ENDERS:
            # What is ended has to be gone before the next step starts it anew.
            await self._run(command, shell)
            if not await self._gone(argv[-1]):
                return web.json_response({"message": f"{shlex.join(argv)}: it does not end"}, status=500)
        else:
            await self._call("launch", {"command": argv}, 30.0)
            await self._rest(_START_CPU_S)
        return web.Response(text=f"{shlex.join(argv)} launched successfully")

    async def open_file(self, request: web.Request) -> web.Response:
        path = _at_home((await request.json())["path"])
        before = set(await self._windows())
        await self._call("launch", {"command": ["xdg-open", path]}, 30.0)
        name = posixpath.basename(path)
        stem = posixpath.splitext(name)[0]
        end = time.monotonic() + _OPEN_TIMEOUT_S
        while time.monotonic() < end:
            windows = await self._windows()
            if any(stem in title for window, title in windows.items() if window not in before or name in title):
                await self._rest(_START_CPU_S)
                return web.Response(text="File opened successfully")
            await asyncio.sleep(_LOOK_S)
        return web.json_response({"message": f"no window has come that shows {path}"}, status=500)

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        path, data = form["file_path"], form["file_data"]
        if not isinstance(path, str) or not isinstance(data, web.FileField):
            return web.json_response({"message": "file_path and a file as file_data are wanted"}, status=400)
        content = await asyncio.to_thread(data.file.read)
        path = posixpath.join(_HOME, _at_home(path))
        await self._call("put_file", {"path": path, "data": content}, 120.0)
        return web.Response(text="File Uploaded")

    async def activate_window(self, request: web.Request) -> web.Response:
        return await self._wmctrl(request, "-a")

    async def close_window(self, request: web.Request) -> web.Response:
        return await self._wmctrl(request, "-c")

    async def change_wallpaper(self, request: web.Request) -> web.Response:
        path = (await request.json())["path"]
        for key in ("picture-uri", "picture-uri-dark"):
            await self._text(["gsettings", "set", "org.gnome.desktop.background", key, f"file://{path}"])
        return web.Response(text="Wallpaper changed successfully")

    # ---- inside

    async def _wmctrl(self, request: web.Request, flag: str) -> web.Response:
        body = await request.json()
        wanted = body["window_name"]
        for theirs, ours in _CHROME:
            wanted = wanted.replace(theirs, ours)
        options = ["-F"] * bool(body.get("strict")) + ["-x"] * bool(body.get("by_class"))
        done = await self._run(["wmctrl", *options, flag, wanted], False)
        if done["exit_code"] != 0:
            return web.json_response({"message": f"no window {wanted!r}"}, status=404)
        await self._rest()
        return web.Response(text="done")

    async def _rest(self, longest_cpu_s: float = 2.0) -> None:
        """Lets the desktop finish what was set off: tasks' own sleeps are for machines that are not busy."""
        await self._call("rest", {"longest_cpu_s": longest_cpu_s}, 400.0)

    async def _run(self, command: str | list[str], shell: bool) -> dict[str, Any]:
        """A command's exit_code, output as text, and whether it was ended for its time."""
        argv = _argv(command, shell)
        if not shell and len(argv) == 3 and argv[1] == "-c" and posixpath.basename(argv[0]) in ("python", "python3"):
            done = await self._call("run_source", {"source": argv[2]}, _COMMAND_TIMEOUT_S)
            return {**done, "stdout": done["output"], "stderr": done["error"]}
        done = await self._call("run", {"command": argv, "timeout_s": _COMMAND_TIMEOUT_S}, _COMMAND_TIMEOUT_S + 30)
        return {**done, "stdout": _decoded(done["stdout"]), "stderr": _decoded(done["stderr"])}

    async def _text(self, argv: list[str]) -> str:
        done = await self._run(argv, False)
        if done["exit_code"] != 0:
            raise web.HTTPInternalServerError(text=f"{shlex.join(argv)}: {done['stderr']}")
        return str(done["stdout"])

    async def _windows(self) -> dict[str, str]:
        done = await self._run(["wmctrl", "-l"], False)
        rows = [line.split(None, 3) for line in done["stdout"].splitlines()]
        return {row[0]: row[3] if len(row) > 3 else "" for row in rows}

    async def _gone(self, name: str) -> bool:
        end = time.monotonic() + _END_TIMEOUT_S
        while (await self._run(["pgrep", name], False))["exit_code"] == 0:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def _verified(self, wanted: Mapping[str, Any]) -> bool:
        if "window_exists" in wanted:
            return any(wanted["window_exists"] in title for title in (await self._windows()).values())
        if "command_success" in wanted:
            return bool((await self._run(wanted["command_success"], True))["exit_code"] == 0)
        return True

    async def _file(self, path: str) -> web.Response:
        path = _at_home(path)
        try:
            return web.Response(body=await self._call("read_file", {"path": path}, 120.0))
        except BunshinError as error:
            return web.json_response({"error": f"{path}: {error}"}, status=404)


def _guarded(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Callable[..., Any]:
    """A workspace that cannot do something is an answer, not a broken connection."""

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (BunshinError, KeyError, ValueError) as error:
            return web.json_response({"status": "error", "message": f"{type(error).__name__}: {error}"}, status=500)

    return serve


def _argv(command: str | list[str], shell: bool) -> list[str]:
    """The command line of a command as OSWorld's server takes it."""
    if shell:
        return ["/bin/sh", "-c", *([command] if isinstance(command, str) else command)]
    words = shlex.split(command) if isinstance(command, str) else list(command)
    return [_at_home(word) for word in words]


def _at_home(path: str) -> str:
    """A path with the home directory written out."""
    return posixpath.join(_HOME, path[2:]) if path.startswith("~/") else path


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    return out.getvalue()
