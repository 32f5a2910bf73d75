# SPDX-License-Identifier: Apache-2.0
"""A guest in pure Python: a page with one text box and a counter, and a task over it."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bunshin_gym.bases import BaseKey, BasePool
from bunshin_gym.errors import ClosedError, ToolError, WorkspaceDied
from bunshin_gym.guest import Seen
from bunshin_gym.surfaces import Screen
from bunshin_gym.tasks import Message, Page, Setup, Verdict
from bunshin_gym.types import ForkStats, ToolCall, WorkspaceStats

SNAPSHOT = ForkStats(total_ns=9, frozen_ns=5, copied_bytes=1, shared_bytes=2, layer_bytes=3)
BRANCH = ForkStats(total_ns=7, frozen_ns=0, copied_bytes=1, shared_bytes=2, layer_bytes=0)


class FakeMachine:
    """Counts what is alive, and fails on request."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.boots = 0
        self.guests = 0
        self.bases = 0
        self.fail_branch: Exception | None = None
        self.fail_fork: Exception | None = None
        self.stall = threading.Event()

    def pool(self) -> BasePool:
        return BasePool(self.boot, image_digest=lambda key: "0" * 64, load=self.load, set_up_max=2)

    def load(self, key: BaseKey, path: Path) -> FakeGuestSnapshot:
        page = json.loads((path / "page.json").read_text())
        guest = FakeGuest(self, key.screen)
        guest.page = page
        return FakeGuestSnapshot(guest)

    def boot(self, key: BaseKey) -> FakeBase:
        return FakeBase(self, key)


class FakeGuest:
    def __init__(self, machine: FakeMachine, screen: Screen) -> None:
        self.machine, self.screen = machine, screen
        self.page: dict[str, Any] = {"url": "about:blank", "text": "", "tabs": 0, "seed": 0}
        self.snapshot_stats: ForkStats | None = SNAPSHOT
        self.branch_stats: ForkStats | None = BRANCH
        self.dead = self.closed = self.confined = False
        self.ended = threading.Event()
        self.asked: list[str] = []
        self.closes = self.reseeds = 0
        with machine.lock:
            machine.guests += 1

    def _check(self) -> None:
        if self.closed:
            raise ClosedError("the guest was closed")
        if self.dead:
            raise WorkspaceDied("the guest died")

    def open(self, url: str) -> None:
        self._check()
        self.page["url"] = url

    def evaluate(self, script: str, arg: Any = None) -> Any:
        self._check()
        self.asked.append(script)
        if script == "seed":
            self.page["seed"] = arg
            return None
        if script == "broken":
            raise ToolError("the page is broken")
        return copy.deepcopy(self.page)

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        raise ToolError(f"no tool named {name!r}")

    def execute(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        self._check()
        return " ".join(argv)

    def act(self, calls: Sequence[ToolCall], *, tree: bool = True, question: str = "") -> Seen:
        error, run = "", 0
        for call in calls:
            self._check()
            run += 1
            error = self._run(call)
            if error:
                break
        self._check()
        view = {**self._view(), **({} if tree else {"axtree_txt": ""})}
        answer: dict[str, Any] | None = None
        if question:
            try:
                answer = {"value": self.evaluate(question)}
            except ToolError as broken:
                answer = {"error": str(broken)}
        return Seen(view=view, error=error, run=run, tool_ns=run * 1000, look_ns=10, answer=answer)

    def _run(self, call: ToolCall) -> str:
        if call.name == "keyboard_type":
            if call.args["text"] == "die":
                self.dead = True
                return ""
            if call.args["text"] == "hang":
                self.ended.wait()
                raise WorkspaceDied("the guest was ended under a call")
            if call.args["text"] == "stall":
                self.machine.stall.wait()
            self.page["text"] += call.args["text"]
        elif call.name == "keyboard_press":
            self.page["tabs"] += 1
        elif call.name == "click":
            return f"click: there is no element with id {call.args['bid']!r} on this page"
        return ""

    def _view(self) -> dict[str, Any]:
        pixels = np.zeros((self.screen.height, self.screen.width, 3), dtype=np.uint8)
        pixels[0, : len(self.page["text"]) % self.screen.width] = self.page["seed"] % 256
        return {
            "screenshot": pixels,
            "axtree_txt": f"textbox {self.page['text']!r} tabs {self.page['tabs']} — seed {self.page['seed']}",
            "url": self.page["url"],
            "open_pages_urls": [self.page["url"]],
            "active_page_index": 0,
            "focused_element_bid": "",
        }

    def fork(self, count: int) -> list[FakeGuest]:
        self._check()
        if self.machine.fail_fork is not None:
            raise self.machine.fail_fork
        branches = []
        for _ in range(count):
            branch = FakeGuest(self.machine, self.screen)
            branch.page = copy.deepcopy(self.page)
            branches.append(branch)
        return branches

    def snapshot(self) -> FakeGuestSnapshot:
        return FakeGuestSnapshot(self.fork(1)[0])

    def confine(self) -> None:
        self._check()
        self.confined = True

    def hurry(self) -> None:
        self._check()
        self.confined = False

    def wanted_out(self) -> bool:
        self._check()
        return bool(self.page.get("out"))

    def reseed(self) -> None:
        self._check()
        self.reseeds += 1

    def stats(self) -> WorkspaceStats:
        self._check()
        return WorkspaceStats(
            processes=3,
            threads=5,
            pss_bytes=10,
            unique_bytes=4,
            shared_bytes=6,
            page_table_bytes=1,
            kernel_bytes=0,
            layer_bytes=0,
        )

    def close(self) -> None:
        self.closes += 1
        if not self.closed:
            self.closed = True
            self.ended.set()
            with self.machine.lock:
                self.machine.guests -= 1


class FakeGuestSnapshot:
    unique_bytes = 1000

    def __init__(self, held: FakeGuest) -> None:
        self.held = held

    def branch(self, *, confined: bool = False) -> FakeGuest:
        guest = self.held.fork(1)[0]
        guest.confined = confined
        return guest

    def hurry(self) -> None:
        self.hurried = True

    def persist(self, path: Path) -> None:
        path.mkdir()
        (path / "page.json").write_text(json.dumps(self.held.page))

    def close(self) -> None:
        self.held.close()


class FakeBase:
    def __init__(self, machine: FakeMachine, key: BaseKey) -> None:
        self.machine, self.key, self.closed = machine, key, False
        with machine.lock:
            machine.boots += 1
            machine.bases += 1

    def branch(self) -> FakeGuest:
        if self.closed:
            raise ClosedError("the base was closed")
        if self.machine.fail_branch is not None:
            failure, self.machine.fail_branch = self.machine.fail_branch, None
            raise failure
        return FakeGuest(self.machine, self.key.screen)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self.machine.lock:
                self.machine.bases -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTask:
    """Type `done`: reward 1. Type `bad`: reward -1. Both end it."""

    id: str = "fake.typing"
    image: str = "fake"
    surface: str = "browser"
    screen: Screen = field(default_factory=lambda: Screen(width=32, height=16))
    timed: bool = False
    broken: bool = False
    torn_down: list[Mapping[str, Any]] = field(default_factory=list)

    def setup(self, page: Page, seed: int) -> Setup:
        page.open("fake://page")
        page.evaluate("broken" if self.broken else "seed", seed)
        return Setup(goal="Type done — «fertig»", state={"seed": seed, "seen": [1]}, info={"extra": [1, 2]})

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        if messages and messages[-1].role == "infeasible":
            return Verdict(reward=0.0, done=True, message=messages[-1].text)
        text = page.evaluate("judge")["text"]
        if "done" in text or "bad" in text:
            return Verdict(reward=1.0 if "done" in text else -1.0, done=True, info={"text": text})
        return Verdict(reward=0.0, done=False, info={"text": text})

    def reseed(self, page: Page, seed: int) -> None:
        page.evaluate("seed", seed)

    def teardown(self, page: Page, state: Mapping[str, Any]) -> None:
        self.torn_down.append(state)
