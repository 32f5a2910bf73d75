# SPDX-License-Identifier: Apache-2.0
"""A WebArena task as ours: sign in, open the first pages, judge once the agent has answered."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.tasks.base import Message, OnWebSites, Page, Setup, Verdict
from bunshin_gym.tasks.sites import fill_addresses, forget_network, network_entries, response_format
from bunshin_gym.tasks.verified import verified_judge
from bunshin_gym.webarena.data import WebArenaDefinition
from bunshin_gym.webarena.helpers import call_helper
from bunshin_gym.webarena.scoring import AnswerJudge, contents_match, strings_match, url_matches
from bunshin_gym.webarena.site import SIGN_IN, SignIn, SiteImage, site_root

__all__ = ["WebArenaTask"]

_NOT_ACHIEVABLE: Final = "N/A"
_GAVE_UP: Final = "infeasible"
_LOOKS: Final = 6
_BETWEEN_LOOKS_MS: Final = 500

_SIGN_IN_SCRIPT: Final = """async ([values]) => {
  const field = document.getElementsByName(Object.keys(values)[0])[0];
  if (!field) return 'the page has no such form';
  const form = field.form;
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  const body = new URLSearchParams(new FormData(form));
  const answer = await fetch(form.action, {method: 'POST', body});
  if (!answer.ok) return `status ${answer.status}`;
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  return page.getElementsByName(field.name).length ? 'the form came back' : '';
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebArenaTask(OnWebSites):
    """One task of either file. Tasks of one number on sites that are set up alike are equal.

    Attributes:
        definition: the task.
        image: digest of the image with the browser and the sites.
        sites: the sites in it.
        judge: compares answers where the task wants a language model.
        id: the file's kind, the sites and the number.
        setting: all that `sites` says, to compare by.
    """

    definition: WebArenaDefinition = field(compare=False, repr=False)
    image: str
    sites: Mapping[str, SiteImage] = field(compare=False, repr=False)
    judge: AnswerJudge | None = field(default=None, compare=False, repr=False)
    id: str = field(init=False)
    setting: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "setting", repr(sorted(self.sites.items())))
        kind = "webarena-verified" if self.definition.verified else "webarena"
        object.__setattr__(self, "id", f"{kind}.{'-'.join(self.definition.sites)}-{self.definition.task_id}")
        refusals = self.definition.refusals(sites=frozenset(self.sites), judge=self.judge is not None)
        if refusals:
            raise UsageError(f"{self.id} is refused: {'; '.join(refusals)}")

    @property
    def urls(self) -> dict[str, str]:
        """Placeholders and the addresses that they stand for."""
        return {f"__{name.upper()}__": site.url for name, site in self.sites.items()}

    def prepare(self, page: Page) -> None:
        """Tells the sites what they must know, signs in, opens the first pages.

        Raises:
            ToolError: a site does not answer, or does not let the task's account in.
        """
        for name in dict.fromkeys(self.sites[name].part_of or name for name in self.definition.needed_sites):
            for command in self.sites[name].commands:
                page.execute(["/usr/sbin/chroot", site_root(name, self.sites), *command], timeout_s=600.0)
        for name in self._accounts():
            self._sign_in(page, name)
        forget_network(page)
        first, *others = (self._render(url) for url in self.definition.start_urls)
        page.open(first)
        for url in others:
            page.call("new_tab")
            page.open(url)

    def setup(self, page: Page, seed: int) -> Setup:
        """Says what to do; all else was done by `prepare`. The seed changes nothing."""
        goal = self._render(str(self.definition.raw["intent"]))
        if self.definition.verified:
            goal += f"\n\n{response_format(self.definition.raw)}"
        return Setup(goal=goal, info={"sites": list(self.definition.sites)})

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        """Judges once the agent has said something.

        Raises:
            ToolError: a site does not answer when it is asked what became of it.
        """
        if not messages:
            return Verdict(reward=0.0, done=False)
        if self.definition.verified:
            judged = verified_judge().judge(
                self.definition.raw, response=messages[-1].text, entries=network_entries(page), urls=self.urls
            )
            return Verdict(reward=judged.score, done=True, info={"reasons": list(judged.reasons)})
        scores = {kind: self._score(kind, page, messages[-1]) for kind in self.definition.checks}
        reward = 1.0
        for score in scores.values():
            reward *= score
        return Verdict(reward=reward, done=True, info={"scores": scores})

    # ---- the original's checks

    def _score(self, kind: str, page: Page, message: Message) -> float:
        judged = self.definition.raw["eval"]
        if kind == "string_match":
            answer = _NOT_ACHIEVABLE if message.role == _GAVE_UP else message.text
            return strings_match(
                judged["reference_answers"],
                self._unrender(answer),
                intent=self.definition.raw["intent"],
                note=judged.get("string_note", ""),
                judge=self.judge,
            )
        if kind == "url_match":
            return float(url_matches(self._render(judged["reference_url"]), self._url(page)))
        return float(all(self._shows(page, target) for target in judged["program_html"]))

    def _shows(self, page: Page, target: Mapping[str, Any]) -> bool:
        """Whether a page has what a target wants; looked at in a tab of its own, unless it is the agent's page."""
        where = self._address(page, target["url"])
        if where == "last":
            return self._content_fits(page, target)
        tab = page.call("observe", {"screenshot": False, "tree": False})["active_page_index"]
        page.call("new_tab")
        try:
            page.open(where)
            return self._content_fits(page, target)
        finally:
            page.call("tab_close")
            page.call("tab_focus", {"index": tab})

    def _content_fits(self, page: Page, target: Mapping[str, Any]) -> bool:
        """Pages that fill themselves in by script are given some seconds."""
        for _ in range(_LOOKS):
            if contents_match(target["required_contents"], html.unescape(self._content(page, target))):
                return True
            page.call("noop", {"wait_ms": _BETWEEN_LOOKS_MS})
        return False

    def _content(self, page: Page, target: Mapping[str, Any]) -> str:
        locator = target["locator"].strip()
        if not locator:
            return str(page.evaluate("() => document.documentElement.outerHTML"))
        if locator.startswith("func:"):
            return self._helper(page, locator)
        if not locator.startswith(("document.", "[...document.")):
            raise UsageError(f"{self.id}: locator {locator!r} is none that the benchmark has")
        try:
            for action in target.get("prep_actions", ()):
                page.evaluate(f"() => {action}")
        except ToolError:
            pass  # the page is another one: what is looked for is not there either
        try:
            return str(page.evaluate(f"() => {locator}"))
        except ToolError:
            return ""  # likewise

    def _address(self, page: Page, url: str) -> str:
        return self._helper(page, url) if url.startswith("func:") else self._render(url)

    def _helper(self, page: Page, call: str) -> str:
        addresses = {name: site.url for name, site in self.sites.items()}
        admin = self._sign_in_of("shopping_admin") or SIGN_IN["shopping_admin"]
        call = self._render(call.removeprefix("func:"))
        return call_helper(call, page, url=self._url(page), sites=addresses, admin=(admin.account, admin.password))

    # ---- accounts and addresses

    def _accounts(self) -> list[str]:
        """The sites that the browser is signed in to at the start."""
        if self.definition.verified:
            return [name for name in self.definition.sites if self._sign_in_of(name)]
        state = str(self.definition.raw.get("storage_state") or "").rpartition("/")[2]
        return [name for name in state.removesuffix("_state.json").split(".") if name]

    def _sign_in_of(self, name: str) -> SignIn | None:
        site = self.sites.get(name)
        return (site.sign_in if site is not None else None) or SIGN_IN.get(name)

    def _sign_in(self, page: Page, name: str) -> None:
        form = self._sign_in_of(name)
        if form is None:
            raise UsageError(f"{self.id}: it is not known how to sign in to {name}: give the site's sign_in")
        address = self.sites[name].url + form.path
        page.open(address)
        problem = page.evaluate(_SIGN_IN_SCRIPT, [{form.name_field: form.account, form.password_field: form.password}])
        if problem:
            raise ToolError(f"{self.id}: {address} does not let {form.account} in: {problem}")

    def _url(self, page: Page) -> str:
        return str(page.call("observe", {"screenshot": False, "tree": False})["url"])

    def _render(self, text: str) -> str:
        return fill_addresses(text, self.urls)

    def _unrender(self, text: str) -> str:
        """Answers are compared with the file's own texts, which have placeholders for addresses."""
        for placeholder, url in sorted(self.urls.items(), key=lambda pair: -len(pair[1])):
            text = text.replace(url, placeholder)
        return text
