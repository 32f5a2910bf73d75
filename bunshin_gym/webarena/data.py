# SPDX-License-Identifier: Apache-2.0
"""WebArena's task files, as their users have them: none of their data is here.

Two formats: the original file (`test.raw.json`, 812 tasks) and webarena-verified's. Either is given by path, or found
in an installed package, or in the environment that judges by webarena-verified, which ships both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.isolated import isolated_path, isolated_python
from bunshin_gym.tasks.verified import VERIFIED

__all__ = ["SITE_NAMES", "WebArenaDefinition", "find_file", "load_definitions", "present_file", "summary"]

SITE_NAMES: Final = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage")
"""The sites that tasks may name."""

# Package, and its files: the original tasks, the verified ones.
_PACKAGES: Final = (
    ("webarena_verified", "assets/dataset/test.raw.json", "assets/dataset/webarena-verified.json"),
    ("webarena", "test.raw.json", ""),
)
_JUDGE: Final = ("webarena-verified", (VERIFIED,))
_CHECKS: Final = frozenset({"string_match", "url_match", "program_html"})
_STRINGS: Final = frozenset({"exact_match", "must_include", "fuzzy_match"})
_PLACEHOLDER: Final = re.compile(r"__([A-Z_]+?)__")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebArenaDefinition:
    """One task, in either format.

    Attributes:
        task_id: its number.
        sites: which sites it is about.
        verified: whether it is in webarena-verified's format.
        raw: the task as the file has it.
    """

    task_id: int
    sites: tuple[str, ...]
    verified: bool
    raw: Mapping[str, Any]

    @property
    def env_name(self) -> str:
        """As ids have it, such as `WebArena-shopping-118`."""
        prefix = "WebArenaVerified" if self.verified else "WebArena"
        return f"{prefix}-{'-'.join(self.sites)}-{self.task_id}"

    @property
    def start_urls(self) -> tuple[str, ...]:
        """Where it begins, one tab each."""
        if self.verified:
            return tuple(self.raw["start_urls"])
        return tuple(self.raw["start_url"].split(" |AND| "))

    @property
    def checks(self) -> tuple[str, ...]:
        """How it is judged."""
        if self.verified:
            return tuple(part["evaluator"] for part in self.raw["eval"])
        return tuple(self.raw["eval"]["eval_types"])

    @property
    def needed_sites(self) -> tuple[str, ...]:
        """Every site that it names, or that an address in it stands for."""
        found = {name.lower() for name in _PLACEHOLDER.findall(json.dumps(self.raw))}
        return tuple(name for name in SITE_NAMES if name in self.sites or name in found)

    @property
    def needs_judge(self) -> bool:
        """Whether a language model has to compare answers."""
        return not self.verified and "fuzzy_match" in (self.raw["eval"]["reference_answers"] or {})

    def refusals(self, *, sites: frozenset[str], judge: bool) -> tuple[str, ...]:
        """Why it cannot be run with these sites, and with or without a judge; empty when it can."""
        reasons = [f"it needs the site {name}" for name in self.needed_sites if name not in sites]
        if self.needs_judge and not judge:
            reasons.append("its answer is compared by a language model: give a judge")
        return tuple(reasons)


def load_definitions(
    path: str | os.PathLike[str] | None = None, *, verified: bool = False
) -> Mapping[int, WebArenaDefinition]:
    """Every task of a file, by number.

    Args:
        path: the file, or a folder with a file of each task; found by itself if None.
        verified: which of the two files to find.

    Raises:
        UsageError: there is none, or it is not of either format; the message says where it was sought.
        BunshinError: no environment can be made to find it in.
    """
    return _load(Path(path) if path is not None else find_file(verified=verified))


@cache
def _load(path: Path) -> Mapping[int, WebArenaDefinition]:
    if not path.exists():
        raise UsageError(f"{path}: no such file of WebArena tasks")
    found: dict[int, WebArenaDefinition] = {}
    for where, raw in _read(path):
        try:
            definition = _check(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where}: not a WebArena task: {error!r}") from error
        if definition.task_id in found:
            raise UsageError(f"{where}: a second task {definition.task_id}")
        found[definition.task_id] = definition
    if not found:
        raise UsageError(f"{path}: no tasks in it")
    return found


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            content = json.loads(file.read_text())
        except ValueError as error:
            raise UsageError(f"{file}: {error}") from error
        rows = content if isinstance(content, list) else [content]
        yield from ((f"{file}, entry {number}", row) for number, row in enumerate(rows))


def _check(raw: Mapping[str, Any]) -> WebArenaDefinition:
    """Looks at all that is used later, so that a wrong file is refused at once."""
    verified = "start_urls" in raw
    sites = tuple(raw["sites"])
    if not sites or not set(sites) <= set(SITE_NAMES):
        raise ValueError(f"sites {raw['sites']}")
    if not isinstance(raw["intent"], str) or isinstance(raw["task_id"], bool):
        raise ValueError("intent or task_id")
    if not verified:
        _check_original(raw["eval"])
    elif not any(part["evaluator"] == "AgentResponseEvaluator" for part in raw["eval"]):
        raise ValueError("no AgentResponseEvaluator")
    definition = WebArenaDefinition(task_id=int(raw["task_id"]), sites=sites, verified=verified, raw=raw)
    if not definition.start_urls:
        raise ValueError("start_urls")
    return definition


def _check_original(judged: Mapping[str, Any]) -> None:
    kinds, answers = set(judged["eval_types"]), set(judged["reference_answers"] or ())
    if not kinds or not kinds <= _CHECKS:
        raise ValueError(f"eval_types {judged['eval_types']}")
    if not answers <= _STRINGS or ("string_match" in kinds and not answers):
        raise ValueError(f"reference_answers {judged['reference_answers']}")
    if "url_match" in kinds and (
        not judged["reference_url"] or judged.get("url_note", "GOLD in PRED") != "GOLD in PRED"
    ):
        raise ValueError(f"reference_url {judged['reference_url']!r}, url_note {judged.get('url_note')!r}")
    for target in judged["program_html"] if "program_html" in kinds else ():
        wanted = set(target["required_contents"])
        if not isinstance(target["url"], str) or not isinstance(target["locator"], str):
            raise ValueError(f"program_html {target}")
        if len(wanted) != 1 or not wanted <= {"exact_match", "must_include"}:
            raise ValueError(f"required_contents {target['required_contents']}")


def find_file(*, verified: bool = False) -> Path:
    """The task file: $BUNSHIN_WEBARENA (or $BUNSHIN_WEBARENA_VERIFIED), or that of a package.

    Raises:
        BunshinError: there is none, and the environment that would have it cannot be made.
    """
    found = present_file(verified=verified)
    if found is None:
        isolated_python(*_JUDGE)
        found = present_file(verified=verified)
    if found is None:
        raise UsageError(f"{VERIFIED} has no file of WebArena tasks")
    return found


def present_file(*, verified: bool = False) -> Path | None:
    """The same, of what is there already."""
    own = os.environ.get("BUNSHIN_WEBARENA_VERIFIED" if verified else "BUNSHIN_WEBARENA")
    if own:
        return Path(own)
    for package, *names in _PACKAGES:
        name = names[verified]
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None and name else ():
            if (Path(folder) / name).is_file():
                return Path(folder) / name
    package, *names = _PACKAGES[0]
    root = isolated_path(*_JUDGE).parent.parent
    return next(root.glob(f"lib/python3*/site-packages/{package}/{names[verified]}"), None)


def summary(definitions: Mapping[int, WebArenaDefinition], *, sites: frozenset[str], judge: bool) -> dict[str, int]:
    """How many can be run with these sites, and for each reason how many cannot."""
    counts: Counter[str] = Counter()
    for definition in definitions.values():
        reasons = definition.refusals(sites=sites, judge=judge)
        counts.update(reasons or ("runnable",))
    return dict(counts)
