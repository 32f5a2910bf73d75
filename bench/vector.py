# SPDX-License-Identifier: Apache-2.0
"""Vector envs: resets and steps of 1 to 16 MiniWoB workspaces, beside AsyncVectorEnv over BrowserGym's MiniWoB.

Both sides run the same task with the same pause before each step, as a model takes to think; ours uses it to make
workspaces ahead (`spares`), and its resets without spares, and those of a group, are told beside. `survivors` is how
many of eight finish their episodes when one workspace is killed.

    python bench/vector.py --json vector.json --markdown docs/benchmarks.md

The peer needs Chromium (apt-get install chromium) and gets an environment of its own, kept under --peer-venv.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import typer
from measure import Table, progress, stop_on_signals, warn_if_busy, write_json, write_section

import bunshin_gym
from bunshin_gym.paths import home_path
from bunshin_gym.records import list_workspaces
from bunshin_gym.tasks.scripted import solve

TASK = "bunshin/MiniWoB-ClickTest2-v0"
PEER = Path(__file__).with_name("peers") / "browsergym_vector.py"
PEER_PACKAGES = ("browsergym-miniwob==0.14.3", "miniwob==1.1.0")
Times = dict[str, list[float]]


def timed(times: list[float], what: Callable[[], Any]) -> Any:
    """Calls it and notes the seconds."""
    begun = time.monotonic()
    result = what()
    times.append(time.monotonic() - begun)
    return result


def ours(num_envs: int, resets: int, steps: int, think_s: float) -> Times:
    """Our times, in seconds."""
    found: Times = {"reset": [], "step": [], "reset_cold": [], "reset_group": [], "refill": []}
    with contextlib.closing(gymnasium.make_vec(TASK, num_envs=num_envs, spares=num_envs)) as envs:
        timed(found["reset_cold"], lambda: envs.reset(seed=0))
        for number in range(resets):
            timed(found["refill"], envs.unwrapped.wait_for_spares)
            timed(found["reset"], lambda seed=1000 * number: envs.reset(seed=seed))
            for _ in range(steps):
                time.sleep(think_s)
                timed(found["step"], lambda: envs.step(["mouse_move(5, 5)"] * num_envs))
    with contextlib.closing(gymnasium.make_vec(TASK, num_envs=num_envs)) as envs:
        for number in range(resets):
            timed(found["reset_cold"], lambda seed=1000 * number: envs.reset(seed=seed))
    with contextlib.closing(bunshin_gym.make_group("miniwob.click-test-2", num_envs)) as envs:
        for number in range(resets):
            timed(found["reset_group"], lambda seed=1000 * number: envs.reset(seed=seed))
    return found


def survivors() -> tuple[int, bool]:
    """How many of eight finish when one is killed in mid-episode, and whether that slot is back a step later."""
    with contextlib.closing(gymnasium.make_vec("bunshin/MiniWoB-LoginUser-v0", num_envs=8)) as envs:
        seen, _ = envs.reset(seed=1)
        plans = [solve("miniwob.login-user", {key: seen[key][i] for key in seen}) for i in range(8)]
        envs.step([plan[0] for plan in plans])
        victim = envs.unwrapped.envs[0].unwrapped.workspace_id
        os.kill(next(record.pid for record in list_workspaces() if record.id == victim), signal.SIGKILL)
        _, _, _, lost, _ = envs.step([plan[1] for plan in plans])
        _, rewards, _, truncated, _ = envs.step([plan[2] for plan in plans])
        return int(np.sum((rewards == 1.0) & ~lost)), bool(lost[0] and not truncated.any())


def peer(python: Path, chromium: str, num_envs: int, resets: int, steps: int, think_s: float) -> Times:
    """The peer's times, in seconds."""
    pages = next(python.parent.parent.glob("lib/python*/site-packages/miniwob/html/miniwob"))
    numbers = [str(number) for number in (num_envs, resets, steps, think_s)]
    done = subprocess.run([python, PEER, pages, chromium, *numbers], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        progress.print(f"the peer failed at {num_envs} envs: it gives up where a browser is slow to start")
        return {}
    found: Times = json.loads(done.stdout.splitlines()[-1])
    return found


def peer_python(folder: Path) -> Path:
    """The Python of the peer's environment, made if there is none."""
    python = folder / "bin/python"
    if not (folder / ".installed").exists():
        progress.print(f"installing {', '.join(PEER_PACKAGES)} into {folder}")
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEER_PACKAGES], check=True)
        (folder / ".installed").touch()
    return python


def row(name: str, ours_s: Sequence[float], peer_s: Sequence[float]) -> tuple[str, ...]:
    """Medians and 99th percentiles, and the ratio of the medians."""

    def text(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f} / {np.quantile(values, 0.99):.2f}" if values else "-"

    ratio = f"{statistics.median(ours_s) / statistics.median(peer_s):.3f}" if peer_s else "-"
    return (name, text(ours_s), text(peer_s), ratio)


def numbers_of(num_envs: int, mine: Times, theirs: Times) -> dict[str, float]:
    """By name, milliseconds."""
    found: dict[str, float] = {}
    for side, times in (("ours", mine), ("peer", theirs)):
        for what, values in times.items():
            if values:
                found[f"{what}{num_envs}_{side}_p50_ms"] = statistics.median(values) * 1e3
                found[f"{what}{num_envs}_{side}_p99_ms"] = float(np.quantile(values, 0.99)) * 1e3
        if times.get("step"):
            found[f"steps_per_s{num_envs}_{side}"] = num_envs / statistics.fmean(times["step"])
    for what in ("reset", "step"):
        if theirs.get(what):
            found[f"{what}{num_envs}_ratio"] = statistics.median(mine[what]) / statistics.median(theirs[what])
    return found


def main(
    sizes: Annotated[list[int] | None, typer.Option("--envs", help="How many; 1, 4, 8 and 16 by default.")] = None,
    resets: Annotated[int, typer.Option(min=1, help="Resets of each size.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps after each reset.")] = 8,
    think_s: Annotated[float, typer.Option(min=0, help="Pause before each step, both sides.")] = 1.0,
    chromium: Annotated[str, typer.Option(help="The peer's browser; empty leaves the peer out.")] = "/usr/bin/chromium",
    peer_venv: Annotated[Path | None, typer.Option(help="The peer's environment.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table into this page.")] = None,
) -> None:
    """Measures and prints a table."""
    stop_on_signals()
    warn_if_busy()
    if chromium and shutil.which(chromium) is None:
        progress.print(f"no {chromium} for the peer: apt-get install chromium, or --chromium ''")
        raise typer.Exit(1)
    python = peer_python(peer_venv or home_path() / "bench-browsergym") if chromium else Path(sys.executable)
    numbers: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for num_envs in sizes or [1, 4, 8, 16]:
        progress.print(f"{num_envs} envs, ours")
        mine = ours(num_envs, resets, steps, think_s)
        progress.print(f"{num_envs} envs, the peer")
        theirs: Times = peer(python, chromium, num_envs, resets, steps, think_s) if chromium else {}
        numbers |= numbers_of(num_envs, mine, theirs)
        rows.append(row(f"reset, {num_envs} envs", mine["reset"], theirs.get("reset", [])))
        rows.append(row(f"reset without spares, {num_envs} envs", mine["reset_cold"], theirs.get("reset", [])))
        rows.append(row(f"reset of a group of {num_envs}", mine["reset_group"], theirs.get("reset", [])))
        rows.append(row(f"step, {num_envs} envs", mine["step"], theirs.get("step", [])))
        write_json(json_file, numbers)
    numbers["survivors"], numbers["slot_back_within_a_step"] = survivors()
    rows.append(("survivors of 8 when one is killed", str(numbers["survivors"]), "-", ""))
    title = "seconds, median / 99th percentile"
    table = Table(title=title, columns=("what", "ours", "AsyncVectorEnv over BrowserGym", "ratio"), rows=rows)
    table.show()
    write_json(json_file, numbers)
    write_section(markdown, "vector", "Vector envs", "Ratio: ours by the peer's, of the medians.", [table.markdown()])


if __name__ == "__main__":
    typer.run(main)
