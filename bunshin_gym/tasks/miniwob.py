# SPDX-License-Identifier: Apache-2.0
"""MiniWoB++: small web tasks that run from files in the image and judge themselves.

Two things differ from the pages as they ship. The time limit of an episode is put so far away that
it never strikes: a workspace may stand frozen or wait for a model for any time. And what would make
equal states look different is taken off the screen: the countdown, the rings drawn at clicks, the blinking
text cursor, animated menus, which are there at once; so is the cover that would start another episode
after the end of one.
Rewards are the pages' raw ones, -1 to 1, which do not shrink with time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.surfaces.base import Screen
from bunshin_gym.tasks.base import Message, Page, Setup, Verdict
from bunshin_gym.tasks.miniwob_names import FLIGHT_SITES, PAGES, TIMED, camel_case

__all__ = ["PAGES_DIR", "MiniWoBTask", "env_names", "make_task"]

PAGES_DIR: Final = "/opt/bunshin/miniwob"
"""Where the image `browser` keeps the pages."""

_SCREEN: Final = Screen(width=320, height=320)
_FLIGHT_SCREEN: Final = Screen(width=800, height=900)
_SEEDS: Final = 1 << 31
_GAVE_UP: Final = "infeasible"

# A page says by no event that it is ready: its load handlers may still wait for their data.
_UNTIL: Final = """
  const until = async (ready, what) => {
    const end = performance.now() + 10000;
    while (!ready()) {
      if (performance.now() > end) throw new Error(what);
      await new Promise(done => setTimeout(done, 5));
    }
  };
"""

_PREPARE: Final = (
    "async () => {"
    + _UNTIL
    + """
  await until(() => typeof core !== 'undefined' && core.cover_div, 'the page did not become ready');
  document.body.removeEventListener('click', core.canvasDrawClick);
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #sync-task-cover { display: none !important; }' +
    '* { caret-color: transparent !important; transition: none !important; animation: none !important; }';
  document.head.appendChild(style);
  if (typeof $ !== 'undefined' && $.fx) $.fx.off = true;
  core.EPISODE_MAX_TIME = 2147483647;
}"""
)

_START: Final = (
    "async seed => {"
    + _UNTIL
    + """
  Math.seedrandom(seed);
  core.startEpisodeReal();
  core.clearTimer();
  await until(() => WOB_TASK_READY, 'the task did not become ready');
  const goal = core.getUtterance();
  return typeof goal === 'string' ? goal : goal.utterance;
}"""
)

_JUDGE: Final = """() => typeof WOB_DONE_GLOBAL === 'undefined' ? null : {
  done: WOB_DONE_GLOBAL, raw_reward: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON, ready: WOB_TASK_READY,
  started: core.EPISODE_MAX_TIME === 2147483647,
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniWoBTask:
    """One MiniWoB++ page as a `Task`.

    Attributes:
        name: the page's name, such as `click-test`, or a booking site's, such as `flight.AA`.
    """

    name: str

    @property
    def id(self) -> str:
        """`miniwob.` and the name."""
        return f"miniwob.{self.name}"

    @property
    def image(self) -> str:
        """The image with the pages in it."""
        return "browser"

    @property
    def surface(self) -> str:
        """The browser."""
        return "browser"

    @property
    def screen(self) -> Screen:
        """Room for the page, and little more."""
        return _FLIGHT_SCREEN if self._is_flight else _SCREEN

    @property
    def timed(self) -> bool:
        """Whether the page changes by the clock."""
        return self.name in TIMED

    @property
    def url(self) -> str:
        """The page's address in the workspace."""
        if self._is_flight:
            site = self.name.removeprefix("flight.")
            return f"file://{PAGES_DIR}/flight/{site}/wrapper.html"
        return f"file://{PAGES_DIR}/miniwob/{self.name}.html"

    @property
    def _is_flight(self) -> bool:
        return self.name.startswith("flight.")

    @property
    def seeded(self) -> bool:
        """Pages draw what they ask for."""
        return True

    @property
    def question(self) -> str:
        """The page's own verdict."""
        return _JUDGE

    def prepare(self, page: Page) -> None:
        """Opens the page and sets it up to where the seed counts; it is on the screen then."""
        page.open(self.url)
        page.evaluate(_PREPARE)
        page.call("rest")

    def setup(self, page: Page, seed: int) -> Setup:
        """Starts an episode of the open page from the seed.

        Raises:
            ToolError: the page never becomes ready.
        """
        goal = page.evaluate(_START, str(seed % _SEEDS))
        if not isinstance(goal, str):
            raise ToolError(f"{self.id}: the page has no goal: {goal!r}")
        return Setup(goal=goal, info={"seed": seed % _SEEDS})

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        """Reads the page's own verdict; leaving the page, or giving up, ends the episode with 0."""
        if messages and messages[-1].role == _GAVE_UP:
            return Verdict(reward=0.0, done=True, message="the agent gave the task up")
        try:
            seen = page.evaluate(self.question)
        except ToolError as error:
            seen, lost = None, str(error)
        else:
            lost = "the page is another one"
        if seen is None or not seen["started"]:
            return Verdict(reward=0.0, done=True, message="the agent left the task's page", info={"lost": lost})
        info = {"raw_reward": seen["raw_reward"], "reason": seen["reason"]}
        if not seen["done"]:
            return Verdict(reward=0.0, done=False, info=info)
        return Verdict(reward=float(seen["raw_reward"]), done=True, info=info)

    def reseed(self, page: Page, seed: int) -> None:
        """Seeds the page's random numbers anew."""
        page.evaluate("seed => { Math.seedrandom(seed); }", str(seed % _SEEDS))

    def teardown(self, page: Page, state: Mapping[str, Any]) -> None:
        """Nothing: all of it is in the workspace."""


def env_names() -> dict[str, str]:
    """Every task's name in environment ids, such as `MiniWoB-ClickTest`, and its own name."""
    names = (*PAGES, *(f"flight.{site}" for site in FLIGHT_SITES))
    return {f"MiniWoB-{camel_case(name)}": name for name in names}


def make_task(name: str) -> MiniWoBTask:
    """Returns the task of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in env_names().values():
        raise UsageError(f"MiniWoB++ has no task {name!r}; there are {', '.join(PAGES[:3])}, ... ({len(PAGES)} pages)")
    return MiniWoBTask(name=name)
