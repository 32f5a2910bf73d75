# SPDX-License-Identifier: Apache-2.0
"""What a task is: a frozen description that sets a workspace up and judges what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from bunshin_gym.surfaces.base import Screen

__all__ = ["AskingTask", "Message", "OnWebSites", "Page", "PreparedTask", "Setup", "Task", "Verdict"]

_WIDE: Final = Screen(width=1280, height=720)


class Page(Protocol):
    """What a task may do in a workspace that has a browser, beside what the agent may."""

    def open(self, url: str) -> None:
        """Opens an address in the active tab and waits until it has loaded.

        Raises:
            ToolError: it does not load.
        """
        ...

    def evaluate(self, script: str, arg: Any = None) -> Any:
        """Runs a JavaScript function on the active tab's page, waits for a promise, returns its value.

        Raises:
            ToolError: it threw, or there is no page.
        """
        ...

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Calls one of the tool server's functions.

        Raises:
            ToolError: it failed; the message has its words.
        """
        ...

    def execute(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """Runs a command in the workspace and returns what it wrote.

        Raises:
            ToolError: it failed; the message has what it wrote to stderr.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something that the agent said: `role` is `assistant`, or `infeasible` when it gave up."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What setting a task up brought.

    Attributes:
        goal: what the agent is to do.
        state: what validate and teardown need to know; copied by a fork, so no handles.
        info: for the env's info.
    """

    goal: str
    state: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A task's judgement after a step.

    Attributes:
        reward: of this step.
        done: whether the episode is over.
        message: for the agent; empty for none.
        info: for the env's info.
    """

    reward: float
    done: bool
    message: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """One task; immutable, shared by all its episodes."""

    @property
    def id(self) -> str:
        """Its family and its name, such as `miniwob.click-test`."""
        ...

    @property
    def image(self) -> str:
        """The image its workspace starts from."""
        ...

    @property
    def surface(self) -> str:
        """How the agent uses the workspace."""
        ...

    @property
    def screen(self) -> Screen:
        """The screen's size when the caller does not say."""
        ...

    @property
    def timed(self) -> bool:
        """Whether it goes on by the clock, so that equal calls need not bring equal observations."""
        ...

    def setup(self, page: Page, seed: int) -> Setup:
        """Makes the workspace ready; equal seeds make equal tasks."""
        ...

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        """Judges; called after each step, never before setup."""
        ...

    def reseed(self, page: Page, seed: int) -> None:
        """Gives the workspace other random numbers from here on."""
        ...

    def teardown(self, page: Page, state: Mapping[str, Any]) -> None:
        """Undoes what setup did outside the workspace; the workspace itself is thrown away."""
        ...


@runtime_checkable
class PreparedTask(Task, Protocol):
    """A task that does all it does inside the workspace, so that episodes can begin as forks of a state it has set up.

    `prepare` is what is the same for every seed; it is run once, and `setup` on a fork of what came of it. The state
    after `setup`, with what was seen then, is kept and forked as well: at once if no seed changes it, else from the
    second time that a seed comes. Equal tasks have to compare equal, and hash.
    """

    @property
    def seeded(self) -> bool:
        """Whether its seed changes how an episode begins."""
        ...

    def prepare(self, page: Page) -> None:
        """Makes a fresh workspace ready; whatever it leaves open to the outside must be closed when it returns."""
        ...


@runtime_checkable
class AskingTask(Task, Protocol):
    """A task whose `validate` begins by asking the page one thing, so that this can be asked together with the look."""

    @property
    def question(self) -> str:
        """JavaScript that only reads; `validate` evaluates it without an argument."""
        ...


class OnWebSites:
    """What tasks on whole web sites have in common."""

    __slots__ = ()

    @property
    def surface(self) -> str:
        """The browser."""
        return "browser"

    @property
    def screen(self) -> Screen:
        """Room for wide layouts."""
        return _WIDE

    @property
    def timed(self) -> bool:
        """Sites are taken to stand still while nobody acts."""
        return False

    @property
    def seeded(self) -> bool:
        """No: instances are tasks."""
        return False

    def reseed(self, page: Page, seed: int) -> None:
        """Nothing: what a site draws for itself is not the task's."""

    def teardown(self, page: Page, state: Mapping[str, Any]) -> None:
        """Nothing: all of it is in the workspace."""
