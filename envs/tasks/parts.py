# SPDX-License-Identifier: Apache-2.0
"""What the generators of task files share: parts of templates in webarena-verified's schema, and writing them down."""

from __future__ import annotations

import json
import random
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
