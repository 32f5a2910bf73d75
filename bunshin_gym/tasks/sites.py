# SPDX-License-Identifier: Apache-2.0
"""Tasks on our own web sites, inside the workspace, judged by webarena-verified and by the database.

Each file of `envs/tasks/SITE/` is a template with its instances. `{{name}}` anywhere in it stands for an instance's
value; a text that is nothing but one is the value itself. What comes out, per instance:

    verified    the task in webarena-verified's schema
    account     whom the browser is signed in as at the start; empty for nobody
    database    queries and the rows that they must return at the end
    solution    steps of `bunshin_gym.tasks.script`
    split       `train` or `test`
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.paths import NETWORK_LOG, task_folder
from bunshin_gym.tasks.base import Message, OnWebSites, Page, Setup, Verdict
from bunshin_gym.tasks.miniwob_names import camel_case
from bunshin_gym.tasks.script import Step, check_steps
from bunshin_gym.tasks.verified import VerifiedJudge, verified_judge

__all__ = [
    "SITES",
    "Definition",
    "Site",
    "SiteTask",
    "definitions",
    "describe_task",
    "env_names_of",
    "fill_addresses",
    "forget_network",
    "make_site_task",
    "network_entries",
    "problems_of",
    "response_format",
    "splits_of",
]

_PSQL: Final = "/usr/lib/postgresql/15/bin/psql"
_PLACEHOLDER: Final = re.compile(r"\{\{(\w+)\}\}")
_TEMPLATE_KEYS: Final = frozenset(
    {"template_id", "intent_template", "account", "start_urls", "sites", "eval", "database", "solution", "instances"}
)

# Fills the form of the page in and sends it from the page; the answer's address tells what came of it.
_SIGN_IN: Final = """async ([selector, values]) => {
  const form = document.querySelector(selector);
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  const body = new URLSearchParams(new FormData(form));
  for (const button of form.querySelectorAll('button[name]')) body.append(button.name, button.value || '1');
  const answer = await fetch(form.action, {method: 'POST', body});
  return answer.ok && answer.url !== location.href;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A web site of ours.

    Attributes:
        name: of the family, of its folder in envs/tasks, and of its image.
        prefix: of its environments' ids.
        urls: placeholders in addresses, and what they stand for in every branch.
        sign_in: page with a form, the form's selector, and the names of its fields for account and password.
        database: the PostgreSQL database and role.
        passwords: of the accounts that tasks use.
    """

    name: str
    prefix: str
    urls: Mapping[str, str]
    sign_in: tuple[str, str, str, str]
    database: str
    passwords: Mapping[str, str]


SITES: Final[Mapping[str, Site]] = {
    "shop": Site(
        name="shop",
        prefix="Shop",
        urls={"__SHOPPING__": "http://shop.test", "__SHOPPING_ADMIN__": "http://shop.test/dashboard"},
        sign_in=("http://shop.test/accounts/login/", "#login_form", "login-username", "login-password"),
        database="shop",
        passwords={
            "alma@shop.test": "ferreira-alma-04110",
            "bruno@shop.test": "lindqvist-bruno-05401",
            "chiara@shop.test": "okafor-chiara-06103",
            "dmitri@shop.test": "salas-dmitri-02903",
            "edda@shop.test": "nakamura-edda-04111",
            "farid@shop.test": "jensen-farid-03301",
            "greta@shop.test": "moreau-greta-05402",
            "hugo@shop.test": "adeyemi-hugo-02904",
            "manager@shop.test": "open-the-till-7",
        },
    ),
    "forum": Site(
        name="forum",
        prefix="Forum",
        urls={"__REDDIT__": "http://forum.test"},
        sign_in=("http://forum.test/user/login/", "form:has([name=password])", "username", "password"),
        database="forum",
        passwords={
            name: f"open-house-{name}"
            for name in ("anouk", "bela", "ciro", "dagny", "emre", "fenja", "gil", "hedda", "warden")
        },
    ),
}
"""Our sites, by family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One instance of a template, with every placeholder filled in."""

    template: str
    number: int
    split: str
    verified: Mapping[str, Any]
    account: str
    database: Sequence[Mapping[str, Any]]
    solution: Sequence[Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTask(OnWebSites):
    """A task on one of our sites. Equal names are equal tasks.

    Attributes:
        site: where.
        name: the template and the number, such as `add-to-cart-2`.
        definition: what to do.
    """

    site: Site = field(compare=False)
    name: str
    definition: Definition = field(compare=False, repr=False)
    judge: VerifiedJudge = field(default_factory=verified_judge, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The site's name and the task's."""
        return f"{self.site.name}.{self.name}"

    @property
    def image(self) -> str:
        """The image with the site in it."""
        return self.site.name

    def prepare(self, page: Page) -> None:
        """Signs in and opens the first page.

        Raises:
            ToolError: the site does not answer, or knows no such account.
        """
        account = self.definition.account
        if account:
            address, form, name, password = self.site.sign_in
            page.open(address)
            values = {name: account, password: self.site.passwords[account]}
            if not page.evaluate(_SIGN_IN, [form, values]):
                raise ToolError(f"{self.id}: {address} does not let {account} in")
        forget_network(page)
        page.open(self._filled(self.definition.verified["start_urls"][0]))

    def setup(self, page: Page, seed: int) -> Setup:
        """Says what to do; all else was done by `prepare`. The seed changes nothing."""
        goal = f"{self.definition.verified['intent']}\n\n{response_format(self.definition.verified)}"
        info = {"template": self.definition.template, "split": self.definition.split}
        return Setup(goal=goal, info=info)

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        """Judges once the agent has said something: by its words, by what its browser sent, by the database."""
        if not messages:
            return Verdict(reward=0.0, done=False)
        judgement = self.judge.judge(
            self.definition.verified,
            response=messages[-1].text,
            entries=network_entries(page),
            urls=self.site.urls,
        )
        reasons = [*judgement.reasons, *self._unmet(page)]
        reward = float(judgement.score == 1.0 and not reasons)
        return Verdict(reward=reward, done=True, info={"judgement": judgement.status, "reasons": reasons})

    def solution(self) -> list[Step]:
        """The scripted solution, with addresses filled in."""
        return [
            [step[0], self._filled(step[1]), *step[2:]] if step[0] == "goto" else list(step)
            for step in self.definition.solution
        ]

    def query(self, page: Page, sql: str) -> list[str]:
        """Rows of the site's database, values separated by commas."""
        database = self.site.database
        argv = [_PSQL, "--host=/run/postgresql", f"--username={database}", f"--dbname={database}"]
        return page.execute([*argv, "--no-psqlrc", "--csv", "--tuples-only", f"--command={sql}"]).splitlines()

    def _unmet(self, page: Page) -> list[str]:
        found = [(wanted, self.query(page, wanted["query"])) for wanted in self.definition.database]
        return [
            f"database: {wanted['query']}: {rows}, not {wanted['rows']}"
            for wanted, rows in found
            if rows != [str(row) for row in wanted["rows"]]
        ]

    def _filled(self, address: str) -> str:
        return fill_addresses(address, self.site.urls)


def fill_addresses(text: str, urls: Mapping[str, str]) -> str:
    """A text with the addresses that its placeholders stand for."""
    # The longer name first: one begins like the other.
    for placeholder in sorted(urls, key=len, reverse=True):
        text = text.replace(placeholder, urls[placeholder])
    return text


def forget_network(page: Page) -> None:
    """Lets the list of what the browser has asked for begin anew."""
    # What the page has set off is written down before the list is emptied.
    page.call("observe", {"screenshot": False, "tree": False})
    page.execute(["/bin/sh", "-c", f": >{NETWORK_LOG}"])


def network_entries(page: Page) -> list[dict[str, Any]]:
    """HAR entries of what the browser has asked for since the task began, oldest first."""
    return [json.loads(line) for line in page.execute(["/bin/cat", NETWORK_LOG]).splitlines()]


def response_format(verified: Mapping[str, Any]) -> str:
    """How the agent has to answer, for the end of a goal."""
    kind = next(part["expected"]["task_type"] for part in verified["eval"] if "task_type" in part["expected"])
    asked = "a list of what was asked for" if kind.lower() == "retrieve" else "null"
    return (
        "When you are done, or have found that it cannot be done, send the user one JSON object with these keys: "
        '"task_type" ("RETRIEVE" if you were asked for information, "MUTATE" if something had to be changed, '
        '"NAVIGATE" if a page had to be opened), "status" ("SUCCESS", "NOT_FOUND_ERROR", "ACTION_NOT_ALLOWED_ERROR", '
        '"PERMISSION_DENIED_ERROR", "DATA_VALIDATION_ERROR", "UNKNOWN_ERROR"), '
        f'"retrieved_data" ({asked}), "error_details" (null, or what went wrong).'
    )


@cache
def definitions(site: str) -> Mapping[str, Definition]:
    """Every task of a site by name, such as `add-to-cart-2`.

    Raises:
        UsageError: a file is not as it should be; the message names it.
    """
    folder = task_folder(site)
    if folder is None:
        raise UsageError(f"the tasks of {site} are not installed: envs/tasks/{site} is missing")
    found: dict[str, Definition] = {}
    for path in sorted(folder.glob("*.json")):
        for definition in _expand(path, site):
            found[f"{definition.template}-{definition.number}"] = definition
    return found


def _expand(path: Path, site: str) -> list[Definition]:
    try:
        template = json.loads(path.read_text())
        if set(template) != _TEMPLATE_KEYS:
            raise UsageError(f"its keys are {sorted(template)}, not {sorted(_TEMPLATE_KEYS)}")
        return [_instance(template, path.stem, number, site) for number in range(1, len(template["instances"]) + 1)]
    except (UsageError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {error!r}") from error


def _instance(template: Mapping[str, Any], name: str, number: int, site: str) -> Definition:
    instance = template["instances"][number - 1]
    values = instance["values"]
    filled = {key: _fill(template[key], values) for key in ("account", "start_urls", "eval", "database", "solution")}
    intent = template["intent_template"]
    check_steps(filled["solution"])
    if filled["account"] and filled["account"] not in SITES[site].passwords:
        raise UsageError(f"there is no account {filled['account']!r}")
    if instance["split"] not in ("train", "test"):
        raise UsageError(f"split {instance['split']!r} is neither train nor test")
    verified = {
        "sites": template["sites"],
        "task_id": template["template_id"] * 100 + number,
        "intent_template_id": template["template_id"],
        "start_urls": filled["start_urls"],
        "intent": _fill(intent, values),
        "intent_template": intent,
        "instantiation_dict": {key: values[key] for key in _PLACEHOLDER.findall(intent)},
        "eval": filled["eval"],
        "revision": 1,
    }
    return Definition(
        template=name,
        number=number,
        split=instance["split"],
        verified=verified,
        account=filled["account"],
        database=filled["database"],
        solution=filled["solution"],
    )


def _fill(part: Any, values: Mapping[str, Any]) -> Any:
    """With every placeholder replaced; raises KeyError for one without a value."""
    if isinstance(part, str):
        whole = _PLACEHOLDER.fullmatch(part)
        if whole is not None:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), part)
    if isinstance(part, list):
        return [_fill(item, values) for item in part]
    if isinstance(part, dict):
        return {key: _fill(value, values) for key, value in part.items()}
    return part


def env_names_of(site: str) -> dict[str, str]:
    """Names in environment ids, such as `Shop-AddToCart-2`, and the tasks' own."""
    prefix = SITES[site].prefix
    return {f"{prefix}-{camel_case(d.template)}-{d.number}": name for name, d in definitions(site).items()}


def make_site_task(site: str, name: str) -> SiteTask:
    """The task of that name.

    Raises:
        UsageError: there is none.
    """
    found = definitions(site)
    if name not in found:
        raise UsageError(f"{site} has no task {name!r}; there are {', '.join(list(found)[:3])}, ... ({len(found)})")
    return SiteTask(site=SITES[site], name=name, definition=found[name])


def splits_of(site: str) -> dict[str, list[str]]:
    """Names of a site's tasks by split."""
    found: dict[str, list[str]] = {"train": [], "test": []}
    for name, definition in definitions(site).items():
        found[definition.split].append(name)
    return found


def describe_task(site: str, name: str) -> list[str]:
    """What a task is, in lines for a person."""
    task = make_site_task(site, name)
    definition = task.definition
    lines = [f"id: {task.id}", f"split: {definition.split}", f"account: {definition.account or 'none'}"]
    lines += [f"intent: {definition.verified['intent']}", f"start: {definition.verified['start_urls'][0]}"]
    lines += [f"judged by: {json.dumps(part)}" for part in definition.verified["eval"]]
    lines += [f"and by the database: {row['query']} is {row['rows']}" for row in definition.database]
    return [*lines, *(f"solution: {json.dumps(step)}" for step in definition.solution)]


def problems_of(site: str) -> list[str]:
    """What webarena-verified does not take of a site's tasks, a line each."""
    found = []
    for name, definition in definitions(site).items():
        try:
            verified_judge().check(definition.verified)
        except UsageError as error:
            found.append(f"{name}: {error}")
    return found
