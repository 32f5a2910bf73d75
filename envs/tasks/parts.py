# SPDX-License-Identifier: Apache-2.0
"""What the generators of task files share: parts of templates in webarena-verified's schema, and writing them down."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PER_TEMPLATE = 3
STRINGS = {"type": "array", "items": {"type": "string"}}
NUMBERS = {"type": "array", "items": {"type": "number"}}
MONEY = {"type": "array", "items": {"type": "number", "format": "currency"}}
NOTHING = {"type": "null"}

Template = dict[str, Any]
Values = dict[str, Any]
Make = Callable[[random.Random], tuple[Template, list[Values]]]


class Templates(dict[str, Make]):
    """Templates by name, in the order in which they were added."""

    def add(self, make: Make) -> Make:
        """Decorates a template; its name is the function's."""
        self[make.__name__.replace("_", "-")] = make
        return make


def slug(text: str) -> str:
    """Django's spelling of a title in an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def csv_row(*values: Any) -> str:
    """A row as the database client writes it."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def said(kind: str, schema: dict[str, Any], data: Any = None, status: str = "SUCCESS") -> dict[str, Any]:
    expected = {"task_type": kind, "status": status, "retrieved_data": data}
    return {"evaluator": "AgentResponseEvaluator", "results_schema": schema, "expected": expected}


def sent(url: str, method: str = "GET", status: int = 200, **more: Any) -> dict[str, Any]:
    expected = {"url": url, "http_method": method, "response_status": status, **more}
    return {"evaluator": "NetworkEventEvaluator", "expected": expected}


def answer(kind: str, data: Any = None, status: str = "SUCCESS") -> list[Any]:
    error = None if status == "SUCCESS" else "it is not there"
    body = {"task_type": kind.upper(), "status": status, "retrieved_data": data, "error_details": error}
    return ["answer", body]


def rows(query: str, *wanted: Any) -> dict[str, Any]:
    return {"query": query, "rows": list(wanted)}


def write_all(folder: Path, templates: Mapping[str, Make], *, first_id: int) -> None:
    """Writes a file for each template; removes those of templates that are gone."""
    folder.mkdir(exist_ok=True)
    for number, (name, make) in enumerate(templates.items(), start=first_id):
        made, values = make(random.Random(name))
        splits = ["train"] * (PER_TEMPLATE - 1) + ["test"]
        instances = [{"split": split, "values": value} for split, value in zip(splits, values, strict=True)]
        text = json.dumps({"template_id": number, **made, "instances": instances}, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n")
    for path in folder.glob("*.json"):
        if path.stem not in templates:
            path.unlink()
