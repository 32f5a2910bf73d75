# SPDX-License-Identifier: Apache-2.0
"""Task environments: resets by fork beside a boot for each reset and beside BrowserGym; steps; how many are solved.

    python bench/tasks.py                  tables
    python bench/tasks.py --json -         one JSON object too
    python bench/tasks.py --no-peer        without BrowserGym
    python bench/tasks.py --solve all      every scripted solution, not the first of each template

`step_overhead_ms` is what a step costs beside its action where a page of 1280x720 is scrolled and its picture taken:
an observation with a screenshot, without the accessibility tree. `step_overhead_with_tree_ms` is the same with the
tree, as envs have it by default. `step_overhead_still_ms` and `step_overhead_still_with_tree_ms` are those of a step
that changes nothing on the screen, so that no picture is taken.

BrowserGym (MiniWoB) needs Chromium (apt-get install chromium) and gets an environment of its own; see bench/vector.py.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import vector
from rich.console import Console
from rich.table import Table

from bunshin_gym.bases import shared_bases
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, ImageNotFoundError
from bunshin_gym.images import ImageStore
from bunshin_gym.paths import home_path
from bunshin_gym.tasks import FAMILIES, PreparedTask, load_task
from bunshin_gym.tasks.script import play
from bunshin_gym.tasks.scripted import SCRIPTED, solve
from bunshin_gym.tasks.sites import SITES, SiteTask, definitions
from bunshin_gym.workspace_guest import boot_workspace
from bunshin_gym.wrappers.workspace_ahead import WorkspaceAhead

MIB = 1 << 20
ROUNDS = 3
STEPS = 5
# A task of each image, and an action that only looks.
FAMILY = {
    "miniwob": ("miniwob.click-test-2", "mouse_move(5, 5)"),
    "shop": ("shop.add-to-cart-1", "mouse_move(5, 5)"),
    "forum": ("forum.open-topic-1", "mouse_move(5, 5)"),
    "desktop": ("desktop.calc-amount", {"name": "wait", "args": {"seconds": 0.0}}),
}
# Each draws nearly all of the screen anew.
SCROLLS = ["scroll(0, 300)", "scroll(0, -300)"]
NOTHING = {"browser": "noop(0)", "desktop": {"name": "wait", "args": {"seconds": 0.0}}}
console, progress = Console(), Console(stderr=True)


def seconds(what: Callable[[], Any]) -> float:
    """How long it takes."""
    begun = time.monotonic()
    what()
    return time.monotonic() - begun


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds."""
    return statistics.median(values) * 1e3, float(np.quantile(values, 0.99)) * 1e3


@contextlib.contextmanager
def envs_of(task_id: str, count: int) -> Iterator[list[BunshinEnv]]:
    """Envs of one task, each of which was reset once."""
    with contextlib.ExitStack() as stack:
        made = [BunshinEnv(load_task(task_id)) for _ in range(count)]
        for env in made:
            stack.callback(env.close)
            env.reset(seed=0)
        yield made


def at_once(task_id: str, action: Any, count: int) -> dict[str, float]:
    """Resets and steps of some envs in threads, all at the same time; every reset has a seed that never came before."""
    resets: list[float] = []
    steps: list[float] = []
    gate = threading.Barrier(count)
    seeds = itertools.count(1000)

    def run(env: BunshinEnv) -> None:
        try:
            for _ in range(ROUNDS):
                gate.wait()
                resets.append(seconds(lambda: env.reset(seed=next(seeds))))
                env._wait_ended()
                gate.wait()
                steps.extend(seconds(lambda: env.step(action)) for _ in range(STEPS))
        except BaseException:
            gate.abort()  # nobody waits for one that does not come
            raise

    with envs_of(task_id, count) as envs, ThreadPoolExecutor(count) as pool:
        for future in as_completed([pool.submit(run, env) for env in envs]):
            future.result()
        stats = [env.stats() for env in envs]
    found = {}
    for name, values in (("reset", resets), ("step", steps)):
        found[f"{name}_p50_ms"], found[f"{name}_p99_ms"] = quantiles(values)
    found["unique_mib"] = statistics.median(one.unique_bytes for one in stats) / MIB
    found["layer_mib"] = statistics.median(one.layer_bytes for one in stats) / MIB
    return found


def ahead_ms(task_id: str) -> float:
    """The median reset in a workspace that was made while the agent was busy."""
    with contextlib.closing(WorkspaceAhead(BunshinEnv(load_task(task_id)))) as env:
        env.reset(seed=0)
        resets = []
        for number in range(1, ROUNDS + 1):
            env.wait_ready()
            resets.append(seconds(lambda seed=number: env.reset(seed=seed)))
    return statistics.median(resets) * 1e3


def again_ms(task_id: str) -> float:
    """The median reset from a seed that has come twice before."""
    with contextlib.closing(BunshinEnv(load_task(task_id))) as env:
        resets = []
        for _ in range(ROUNDS + 2):
            resets.append(seconds(lambda: env.reset(seed=0)))
            env._wait_ended()
    return statistics.median(resets[2:]) * 1e3


def boots(task_id: str) -> float:
    """The median seconds of a reset that boots: a workspace of its own, set up by the task."""
    env = BunshinEnv(load_task(task_id))

    def boot() -> None:
        guest, _ = boot_workspace(env._base_key)
        try:
            if isinstance(env.task, PreparedTask):
                env.task.prepare(guest)
            env.task.setup(guest, 0)
            guest.act(())
        finally:
            guest.close()

    return statistics.median(seconds(boot) for _ in range(ROUNDS))


def overhead_ms(actions: Sequence[str], *, tree: bool) -> float:
    """What a step with a picture of 1280x720 takes beside its action; with the accessibility tree or without."""
    with contextlib.closing(BunshinEnv(load_task(FAMILY["shop"][0]), tree=tree)) as env:
        env.reset(seed=0)
        env.step(actions[-1])
        measured = [env.step(action)[4]["measured"] for action in itertools.islice(itertools.cycle(actions), 20)]
    return statistics.median(one.total_ns - one.tool_ns for one in measured) / 1e6


# ---- solved -------------------------------------------------------------------------------------


def scripted(everything: bool) -> list[str]:
    """Ids of tasks that have a script."""
    found = [*SCRIPTED]
    for site in SITES:
        found += [f"{site}.{name}" for name, d in definitions(site).items() if everything or d.number == 1]
    desktop = importlib.import_module(FAMILIES["desktop"]) if "desktop" in FAMILIES else None
    if desktop is not None:
        names = [name for name in desktop.env_names().values() if desktop.solution(name)]
        found += [f"desktop.{name}" for name in (names if everything else names[:4])]
    return [task_id for task_id in found if built(load_task(task_id).image)]


def attempt(task_id: str) -> tuple[bool, bool]:
    """Whether the script solves the task, and whether doing nothing is worth anything."""
    task = load_task(task_id)
    with contextlib.closing(BunshinEnv(task)) as env:
        seen, _ = env.reset(seed=11)
        (idle,) = env.fork()
        with contextlib.closing(idle):
            last = "DONE" if task.surface != "browser" else 'send_msg_to_user("")'
            gained = sum(idle.step(action)[1] for action in (NOTHING[task.surface], last))
        reward = play_task(env, seen)
    return reward == 1.0, gained != 0.0


def play_task(env: BunshinEnv, seen: dict[str, Any]) -> float:
    """The reward at the end of the task's script."""
    task = env.task
    if isinstance(task, SiteTask):
        return [stepped[1] for _, stepped in play(env.step, seen, task.solution())][-1]
    family, _, name = task.id.partition(".")
    if family == "desktop":
        from bunshin_gym.tasks.scripted_desktop import perform

        return perform(env, seen, importlib.import_module(FAMILIES["desktop"]).solution(name))[1]
    return [env.step(action)[1] for action in solve(task.id, seen)][-1]


def solved(everything: bool) -> dict[str, int]:
    """How many have a script, how many it solves, how many reward doing nothing."""
    found = {"solvable": 0, "solved": 0, "noop_nonzero": 0}
    for task_id in scripted(everything):
        found["solvable"] += 1
        try:
            done, gained = attempt(task_id)
        except BunshinError as error:
            progress.print(f"{task_id}: {error}", markup=False)
            continue
        found["solved"] += done
        found["noop_nonzero"] += gained
        if not done or gained:
            progress.print(f"{task_id}: solved {done}, doing nothing pays {gained}", markup=False)
    return found


# ---- all of it ------------------------------------------------------------------------------------


def built(image: str) -> bool:
    """Whether an image is in the store."""
    try:
        ImageStore().get(image)
    except ImageNotFoundError:
        return False
    return True


def browsergym_ms(chromium: str) -> float | None:
    """BrowserGym's median reset of one env; None when it cannot be had."""
    python = vector.peer_python(home_path() / "bench-browsergym")
    times = vector.peer(python, chromium, 1, ROUNDS + 1, STEPS, 0.0)
    # The first one imports and installs its own.
    return statistics.median(times["reset"][1:]) * 1e3 if times.get("reset") else None


def measure(families: Sequence[str], counts: Sequence[int], chromium: str) -> dict[str, float]:
    """All times, by name."""
    found: dict[str, float] = {}
    for family in families:
        task_id, action = FAMILY[family]
        if not built(load_task(task_id).image):
            progress.print(f"no image for {family}: bunshin image build {load_task(task_id).image}")
            continue
        progress.print(f"{family}: a boot for each reset")
        found[f"{family}_boot_ms"] = boots(task_id) * 1e3
        found[f"{family}_reset_ahead_ms"] = ahead_ms(task_id)
        found[f"{family}_reset_again_ms"] = again_ms(task_id)
        for count in counts:
            progress.print(f"{family}: {count} at once")
            found |= {f"{family}{count}_{name}": value for name, value in at_once(task_id, action, count).items()}
        found[f"{family}_reset_over_boot"] = found[f"{family}_boot_ms"] / found[f"{family}{counts[0]}_reset_p50_ms"]
        for kind in ("ahead", "again"):
            found[f"{family}_reset_{kind}_over_boot"] = found[f"{family}_boot_ms"] / found[f"{family}_reset_{kind}_ms"]
    for name in ("reset_over_boot", "reset_ahead_over_boot", "reset_again_over_boot"):
        found[name] = statistics.median(value for key, value in found.items() if key.endswith(f"_{name}"))
    for name, actions in (("", SCROLLS), ("still_", ["mouse_move(5, 5)"])):
        found[f"step_overhead_{name}ms"] = overhead_ms(actions, tree=False)
        found[f"step_overhead_{name}with_tree_ms"] = overhead_ms(actions, tree=True)
    peer = browsergym_ms(chromium) if chromium else None
    if peer is not None:
        found["browsergym_reset_ms"] = peer
        found["reset_over_browsergym"] = peer / found[f"miniwob{counts[0]}_reset_p50_ms"]
        found["reset_ahead_over_browsergym"] = peer / found["miniwob_reset_ahead_ms"]
        found["reset_again_over_browsergym"] = peer / found["miniwob_reset_again_ms"]
    return found


def show(found: dict[str, float]) -> None:
    """Prints every number."""
    table = Table("what", "value")
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)


def main(
    families: Annotated[str, typer.Option(help="Families, separated by commas.")] = "miniwob,shop,desktop",
    counts: Annotated[str, typer.Option(help="Envs at once, separated by commas.")] = "1,4,16",
    peer: Annotated[bool, typer.Option(help="Whether to run BrowserGym beside.")] = True,
    chromium: Annotated[str, typer.Option(help="BrowserGym's browser.")] = "/usr/bin/chromium",
    solve: Annotated[str, typer.Option(help="Which scripts to run: first, all or none.")] = "first",
    json_path: Annotated[str, typer.Option("--json", help="Where to write the numbers; - is standard output.")] = "",
) -> None:
    """Measures resets and steps, and counts what the scripted solutions solve."""
    if peer and not Path(chromium).exists():
        raise typer.BadParameter(f"no {chromium} for BrowserGym: apt-get install chromium, or --no-peer")
    numbers = [int(count) for count in counts.split(",")]
    found = measure(families.split(","), numbers, chromium if peer else "")
    if solve != "none":
        found |= solved(solve == "all")
    shared_bases().close()
    show(found)
    text = json.dumps(found, indent=1)
    if json_path == "-":
        print(text)
    elif json_path:
        Path(json_path).write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
