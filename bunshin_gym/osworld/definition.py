# SPDX-License-Identifier: Apache-2.0
"""One task in OSWorld's schema: checked, and with what it needs beyond a workspace."""

from __future__ import annotations

import json
import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlparse

from bunshin_gym.errors import UsageError

__all__ = ["CONFIG_TYPES", "Definition", "Download", "Need", "load_definition"]

_CONFIG_WORDS: Final = (
    "activate_window change_wallpaper chrome_close_tabs chrome_open_tabs close_window command download "
    "execute execute_with_verification googledrive launch login open proxy sleep update_browse_history "
    "upload_file"
)
CONFIG_TYPES: Final = frozenset(_CONFIG_WORDS.split())
"""Every kind of step in `config` and `postconfig`."""

NeedKind = Literal["account", "application", "evaluator", "files", "network"]

# Getters that read the web itself, or a page that only the web has.
_WEB_WORDS: Final = (
    "active_tab_html_parse active_tab_url_parse gotoRecreationPage_and_get_html_content info_from_website "
    "macys_product_url_parse number_of_search_results page_info pdf_from_url url_dashPart url_path_parse"
)
_WEB_GETTERS: Final = frozenset(_WEB_WORDS.split())
# Of newer versions of OSWorld than the one that evaluates: a checkout with its own `desktop_env` brings them.
_NEWER: Final = frozenset({"check_play_and_exit", "check_structure_sim_with_threshold", "chrome_appearance_mode_ui"})
_OCR_METRICS: Final = frozenset({"compare_image_text"})
# Steps by hand that fetch something, though neither set-up nor evaluation does.
_FETCHED: Final = re.compile(
    r"https?://|\bconda install\b|\binstall\b.*\bon my (?:current )?system\b"
    r"|\b(?:install|download)\b.*\b(?:extension|theme|plugin|package|add-on)\b",
    re.IGNORECASE | re.DOTALL,
)
_APPLICATIONS: Final = {"vs_code": "Visual Studio Code"}
_HISTORY_FILE: Final = "history_new.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that a task wants and a workspace alone has not: its kind, and what exactly, for a person."""

    kind: NeedKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file from the web: its address, and its name in the cache folder."""

    url: str
    cache_name: str

    @property
    def base_name(self) -> str:
        """The last part of the address."""
        return posixpath.basename(unquote(urlparse(self.url).path))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Definition:
    """A task.

    Attributes:
        path: its file.
        domain: the folder it is in, such as `libreoffice_calc`.
        id: its own name.
        raw: the file's content.
        infeasible: whether giving up is what solves it.
    """

    path: Path
    domain: str
    id: str
    raw: Mapping[str, Any]

    @property
    def instruction(self) -> str:
        """What the agent is to do."""
        return str(self.raw["instruction"])

    @property
    def infeasible(self) -> bool:
        """Whether giving up is what solves it."""
        return bool(self.raw["evaluator"]["func"] == "infeasible")

    @property
    def config(self) -> list[dict[str, Any]]:
        """The steps that set it up."""
        return list(self.raw.get("config", []))

    def steps(self) -> Iterator[Mapping[str, Any]]:
        """All steps: of the set-up, then those before the evaluation."""
        yield from self.config
        yield from self.raw["evaluator"].get("postconfig", [])

    def getters(self) -> Iterator[Mapping[str, Any]]:
        """What the evaluation looks at: results, then what is expected."""
        for key in ("result", "expected"):
            found = self.raw["evaluator"].get(key) or []
            yield from (entry for entry in (found if isinstance(found, list) else [found]) if entry)

    def metrics(self) -> list[str]:
        """Names of the metrics."""
        func = self.raw["evaluator"]["func"]
        return list(func) if isinstance(func, list) else [func]

    def downloads(self) -> list[Download]:
        """The files it takes from the web, in the original's cache names."""
        found = []
        for step in self.steps():
            if step["type"] == "download":
                for file in step["parameters"]["files"]:
                    name = f"{uuid.uuid5(uuid.NAMESPACE_URL, file['url'])}_{posixpath.basename(file['path'])}"
                    found.append(Download(url=file["url"], cache_name=name))
        for getter in self.getters():
            if getter["type"] == "cloud_file":
                paths, names = getter["path"], getter["dest"]
                pairs = zip(paths, names, strict=True) if getter.get("multi") else [(paths, names)]
                found += [Download(url=url, cache_name=name) for url, name in pairs]
        return found

    def needs(self) -> tuple[Need, ...]:
        """What it wants beyond the workspace and the files of `downloads`; giving up wants less."""
        found: list[Need] = []
        for step in self.steps():
            found += _needs_of_step(step)
        for app in self.raw.get("related_apps", []):
            if app in _APPLICATIONS:
                found.append(Need(kind="application", detail=f"{_APPLICATIONS[app]} is not in the image"))
        if not self.infeasible:
            found += self._needs_of_evaluation()
        return tuple(dict.fromkeys(found))

    def _needs_of_evaluation(self) -> Iterator[Need]:
        if self.raw.get("proxy"):
            yield Need(kind="network", detail="web sites, through a proxy")
        if _FETCHED.search(self.instruction):
            yield Need(kind="network", detail="the task is to fetch something")
        for getter in self.getters():
            if getter["type"] in _WEB_GETTERS:
                yield Need(kind="network", detail=f"getter {getter['type']} reads a web site")
            if "timedatectl" in str(getter.get("command", "")):
                yield Need(kind="application", detail="timedatectl wants systemd, which is not in the image")
            if getter["type"] == "data_delete_automacally":
                yield Need(kind="evaluator", detail="Chromium's profile has what it looks for from the start")
            if getter["type"] == "googledrive_file":
                yield Need(kind="account", detail="Google Drive")
            if getter["type"] == "rule_relativeTime" and "timezone" not in getter.get("rules", {}):
                yield Need(kind="network", detail="getter rule_relativeTime asks where it is")
        for name in sorted({*self.metrics(), *(getter["type"] for getter in self.getters())} & _NEWER):
            yield Need(kind="evaluator", detail=f"{name} is not in desktop-env 1.0.2")
        for metric in self.metrics():
            if metric in _OCR_METRICS:
                yield Need(kind="application", detail=f"metric {metric} wants easyocr, which is not installed")


def _needs_of_step(step: Mapping[str, Any]) -> Iterator[Need]:
    kind, parameters = step["type"], step["parameters"]
    if kind in ("googledrive", "login"):
        yield Need(kind="account", detail="Google Drive")
    elif kind == "update_browse_history":
        yield Need(kind="files", detail=f"{_HISTORY_FILE} in the cache folder")
    elif kind == "proxy":
        yield Need(kind="network", detail="a proxy")
    elif kind == "chrome_open_tabs" and any(url.startswith(("http:", "https:")) for url in parameters["urls_to_open"]):
        yield Need(kind="network", detail=f"opens {parameters['urls_to_open'][0]}")
    elif kind in ("launch", "execute", "command"):
        command = parameters["command"]
        words = command.split() if isinstance(command, str) else command
        if words and posixpath.basename(words[0]) == "code":
            yield Need(kind="application", detail="Visual Studio Code is not in the image")


def load_definition(path: Path, *, domain: str = "") -> Definition:
    """Reads and checks a task file.

    Raises:
        UsageError: it cannot be read, or is no task; the message says what is wrong with it.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    problem = _problem(raw)
    if problem:
        raise UsageError(f"{path}: {problem}")
    return Definition(path=path, domain=domain or path.parent.name, id=raw["id"], raw=raw)


def _problem(raw: Any) -> str:
    """What is wrong with a task file's content; empty for nothing."""
    if not isinstance(raw, dict):
        return "not a mapping"
    for key, kind in (("id", str), ("instruction", str), ("evaluator", dict)):
        if not isinstance(raw.get(key), kind):
            return f"{key} is missing, or no {kind.__name__}"
    evaluator = raw["evaluator"]
    for where, steps in (("config", raw.get("config", [])), ("postconfig", evaluator.get("postconfig", []))):
        for number, step in enumerate(steps):
            if not isinstance(step, dict) or not isinstance(step.get("parameters"), dict):
                return f"{where} step {number} has no parameters"
            if step.get("type") not in CONFIG_TYPES:
                return f"{where} step {number}: type {step.get('type')!r} is unknown"
    func = evaluator.get("func")
    if isinstance(func, list):
        for key in ("result", "expected", "options"):
            if key in evaluator and (not isinstance(evaluator[key], list) or len(evaluator[key]) != len(func)):
                return f"evaluator: {len(func)} functions, but {key} is no list of as many"
    elif not isinstance(func, str):
        return "evaluator: func is missing"
    return ""
