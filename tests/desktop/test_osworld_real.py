# SPDX-License-Identifier: Apache-2.0
"""OSWorld's own controllers against a workspace, and tasks solved for real, in forks and freshly booted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import pytest
from support.desktop import key, run

import bunshin_gym
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.osworld import Endpoint, shared_evaluator
from bunshin_gym.tasks import desktop as own_tasks
from bunshin_gym.tasks import osworld
from bunshin_gym.tasks.osworld import DesktopTask
from bunshin_gym.tasks.scripted_desktop import perform
from bunshin_gym.workspace_guest import boot_workspace

pytestmark = pytest.mark.root

MIRROR = Path(os.environ.get("BUNSHIN_OSWORLD_DATA", Path(__file__).parents[3] / "shared" / "data" / "osworld"))


def chosen() -> list[str]:
    """Ids of the tasks to solve: a handful, or all that have a solution with BUNSHIN_ALL_TASKS=1."""
    own = sorted(own_tasks.env_names().values())
    theirs = sorted(path.stem for path in (Path(__file__).parents[2] / "envs/tasks/osworld/solutions").glob("*.json"))
    theirs = theirs if MIRROR.is_dir() else []
    if os.environ.get("BUNSHIN_ALL_TASKS") != "1":
        own = [name for name in own if name in ("calc-amount", "files-archive")]
        theirs = [name for name in theirs if name.startswith(("1e8df695", "e0df059f"))]
    return [*(f"desktop.{name}" for name in own), *(f"osworld.{name}" for name in theirs)]


def make(task_id: str) -> tuple[DesktopTask, list[Any]]:
    family, _, name = task_id.partition(".")
    if family == "desktop":
        return own_tasks.make_task(name), own_tasks.solution(name)
    return osworld.make_task(name, root=str(MIRROR)), osworld.solution(name)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task_id", chosen())
def test_a_no_op_scores_0_and_the_solution_1_forked_and_booted_alike(task_id: str) -> None:
    task, solution = make(task_id)
    env = BunshinEnv(task)
    try:
        env.reset(seed=0)
        _, reward, ended, _, _ = env.step("DONE")
        assert (reward, ended) == (0.0, True)
        seen, info = env.reset(seed=0)
        assert info["measured"].branch is not None
        assert seen["instruction"] == task.definition.instruction
        half = len(solution) // 2
        seen, _, _ = perform(env, seen, solution[:half])
        (branch,) = env.fork(1)
        try:
            assert perform(env, seen, solution[half:])[1:] == (1.0, True)
            assert perform(branch, seen, solution[half:])[1:] == (1.0, True)
        finally:
            branch.close()
    finally:
        env.close()
    booted, _ = boot_workspace(env._base_key)
    try:
        task.prepare(booted)
        assert solve_by_hand(booted, task, solution) == 1.0
    finally:
        booted.close()


def solve_by_hand(guest: Any, task: DesktopTask, solution: list[Any]) -> float:
    """Solves a task in a workspace that was never forked."""

    class Plain:
        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            from bunshin_gym.surfaces import DesktopSurface

            calls = [call for call in DesktopSurface().parse(action) if call.name not in ("done", "report_infeasible")]
            seen = guest.act(calls)
            view = {**seen.view, "terminal": seen.view["terminal"] or "", "last_action_error": seen.error}
            return view, 0.0, False, False, {}

    first = Plain().step({"name": "wait", "args": {"seconds": 0.0}})[0]
    perform(Plain(), first, [step for step in solution if step != "DONE"])
    return task.score(guest)


def test_infeasible_tasks_score_when_the_agent_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "examples" / "os" / "no.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"id": "no", "instruction": "cannot be done", "config": [], "evaluator": {"func": "infeasible"}}')
    env = BunshinEnv(osworld.make_task(str(path)))
    try:
        env.reset(seed=0)
        assert env.step("DONE")[1:3] == (0.0, True)
        env.reset(seed=0)
        assert env.step("FAIL")[1:3] == (1.0, True)
    finally:
        env.close()


def test_giving_up_a_task_that_can_be_done_scores_0(monkeypatch: pytest.MonkeyPatch) -> None:
    bunshin_gym.register_envs()
    env = gymnasium.make("bunshin/Desktop-FilesFolders-v0")
    try:
        env.reset(seed=0)
        env.unwrapped._guest.call("run", {"command": "mkdir -p ~/Desktop/trip/{maps,photos,tickets}", "shell": True})
        (branch,) = env.unwrapped.fork(1)
        assert branch.step("FAIL")[1:3] == (0.0, True)
        branch.close()
        assert env.step("DONE")[1:3] == (1.0, True)
    finally:
        env.close()


# ---- the endpoint

CONTROLLERS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import worker
sys.meta_path.append(worker._AbsentFinder())
from desktop_env.controllers.python import PythonController
from desktop_env.controllers.setup import SetupController
port, chromium, cache = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
c = PythonController("127.0.0.1", port)
s = SetupController("127.0.0.1", port, chromium, cache_dir=cache, client_password="password")
local = Path(cache) / "local.txt"
local.write_text("from outside")
s.setup([
    {"type": "upload_file", "parameters": {"files": [{"local_path": str(local), "path": "/home/user/up/load.txt"}]}},
    {"type": "execute", "parameters": {"command": "echo {SCREEN_WIDTH} > ~/width", "shell": True}},
    {"type": "command", "parameters": {"command": ["cat", "/home/user/up/load.txt"], "stdout": "out.txt"}},
    {"type": "launch", "parameters": {"command": ["gedit", "/home/user/up/load.txt"]}},
    {"type": "execute_with_verification", "parameters": {
        "command": ["true"], "verification": {"window_exists": "load.txt"}, "max_wait_time": 120}},
    {"type": "activate_window", "parameters": {"window_name": "load.txt"}},
    {"type": "change_wallpaper", "parameters": {"path": "/home/user/wall.png"}},
    {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}},
    {"type": "launch", "parameters": {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}},
    {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///home/user/up/load.txt", "about:blank"]}},
    {"type": "chrome_close_tabs", "parameters": {"urls_to_close": ["about:blank"]}},
    {"type": "close_window", "parameters": {"window_name": "load.txt"}},
    {"type": "sleep", "parameters": {"seconds": 0.1}},
])
c.execute_action({"action_type": "MOVE_TO", "parameters": {"x": 40, "y": 50}})
print(json.dumps({
    "stdout": (Path(cache) / "out.txt").read_text(),
    "file": c.get_file("/home/user/width").decode(),
    "png": c.get_screenshot()[:4].hex(),
    "tree": c.get_accessibility_tree()[:14],
    "terminal": c.get_terminal_output(),
    "python": c.execute_python_command("print(pyautogui.position()[0])")["output"],
    "bash": c.run_bash_script("echo $((2+3)); exit 4")["returncode"],
    "script": c.run_python_script("print('hi')")["output"],
    "size": c.get_vm_screen_size(),
    "platform": c.get_vm_platform(),
    "desktop": c.get_vm_desktop_path(),
    "listing": c.get_vm_directory_tree("/home/user/up"),
    "missing": c.get_file("/no/such/file"),
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What OSWorld's controllers, as they come from PyPI, say of a workspace."""
    import json
    import subprocess

    from bunshin_gym.bases import shared_bases

    cache = tmp_path_factory.mktemp("cache")
    package = Path(bunshin_gym.__file__).parent / "osworld"
    guest = shared_bases().branch(key()).guest
    try:
        with Endpoint(guest) as endpoint:
            for path, status in (("/platform", 200), ("/no_such", 404)):
                assert httpx.get(endpoint.url + path).status_code == status
            assert httpx.post(endpoint.url + "/start_recording").status_code == 501
            assert httpx.post(endpoint.url + "/execute", json={}).status_code == 500
            ports = [str(endpoint.port), str(endpoint.chromium_port)]
            argv = [str(shared_evaluator().install()), "-c", CONTROLLERS, str(package), *ports, str(cache)]
            done = subprocess.run(argv, capture_output=True, text=True, cwd=cache, timeout=900, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            found = json.loads(done.stdout.splitlines()[-1])
        # Nothing outside is connected any more: it can be forked again.
        (branch,) = guest.fork(1)
        found["windows"] = run(branch, "wmctrl -l")
        found["wallpaper"] = run(branch, "gsettings get org.gnome.desktop.background picture-uri")
        branch.close()
        yield found
    finally:
        guest.close()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stdout", "from outside"),
        ("file", "1920\n"),
        ("png", "89504e47"),
        ("tree", "<desktop-frame"),
        ("terminal", None),
        ("python", "40\n"),
        ("bash", 4),
        ("script", "hi\n"),
        ("size", {"width": 1920, "height": 1080}),
        ("platform", "Linux"),
        ("desktop", "/home/user/Desktop"),
        ("listing", {"type": "directory", "name": "up", "children": [{"type": "file", "name": "load.txt"}]}),
        ("missing", None),
        ("wallpaper", "'file:///home/user/wall.png'\n"),
    ],
)
def test_osworld_s_own_controllers(answers: dict[str, Any], name: str, value: object) -> None:
    assert answers[name] == value


def test_windows_and_tabs_were_opened_and_closed(answers: dict[str, Any]) -> None:
    assert "gedit" not in answers["windows"]
    assert "Chromium" in answers["windows"]
