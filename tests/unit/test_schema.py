# SPDX-License-Identifier: Apache-2.0
"""Tools as JSON Schema: what the schemas allow, the surfaces parse."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from bunshin_gym.surfaces import ActionError, BrowserSurface, DesktopSurface
from bunshin_gym.surfaces.actions import Tool, parse_actions
from bunshin_gym.surfaces.browser import BROWSER_TOOLS
from bunshin_gym.surfaces.desktop import DESKTOP_TOOLS
from bunshin_gym.surfaces.schema import SCHEMAS, read_tool_call, tool_definitions

TABLES = {"browser": BROWSER_TOOLS, "desktop": DESKTOP_TOOLS}
SAMPLES = {"string": "a", "number": 1.5, "integer": 2, "boolean": True, "array": []}


def sample(schema: Mapping[str, object]) -> object:
    if "anyOf" in schema:
        return sample(schema["anyOf"][1])  # type: ignore[index]
    return schema["enum"][0] if "enum" in schema else SAMPLES[schema["type"]]  # type: ignore[index]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("style", ["openai", "anthropic", "mcp"])
def test_every_tool_has_a_definition_that_leads_to_a_call(table: str, style: str) -> None:
    tools: Mapping[str, Tool] = TABLES[table]
    definitions = tool_definitions(tools.values(), style=style)  # type: ignore[arg-type]
    json.dumps(definitions)
    assert len(definitions) == len(tools)
    for definition in definitions:
        inner = definition["function"] if style == "openai" else definition
        (schema,) = [value for value in inner.values() if isinstance(value, dict)]
        every = {name: sample(part) for name, part in schema["properties"].items()}
        least = {name: every[name] for name in schema["required"]}
        for arguments in (every, least):
            (call,) = parse_actions(read_tool_call(inner["name"], json.dumps(arguments)), tools)
            assert call.args.keys() == schema["properties"].keys()
            for name, value in arguments.items():
                assert call.args[name] == value
        for name, part in schema["properties"].items():
            if name not in least:
                given = parse_actions(read_tool_call(inner["name"], {**least, name: part["default"]}), tools)
                assert given == parse_actions(read_tool_call(inner["name"], least), tools)


def test_definitions_share_nothing_with_the_tables() -> None:
    definition = tool_definitions([BROWSER_TOOLS["click"]])[0]["function"]["parameters"]
    definition["properties"]["button"]["enum"].append("fourth")
    assert "fourth" not in SCHEMAS["button"]["enum"]


def test_surfaces_name_their_tools() -> None:
    assert BrowserSurface().tools is BROWSER_TOOLS
    assert DesktopSurface().tools is DESKTOP_TOOLS


@pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
def test_arguments_that_are_no_object_are_told(arguments: str) -> None:
    with pytest.raises(ActionError, match="click"):
        read_tool_call("click", arguments)
    assert read_tool_call("go_back", "").args == {}
