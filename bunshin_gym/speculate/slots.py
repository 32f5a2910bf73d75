# SPDX-License-Identifier: Apache-2.0
"""How calls get their arguments: learnt from recorded calls, used to propose new ones.

An argument is explained by where its value can be found: it is an element's `ref` or its `name`, a
piece of the instruction (`goal`), or always the same (`lit`). A call with explanations instead of
values is a template, such as click(bid=ref, button="left"): it fits pages and tasks never seen.
Of an argument that is source code, a piece is explained: the place in `pyautogui.click(410, 96)`,
the text in `pyautogui.write('Total')`; what is around it is part of the template.
Which explanation to believe is counted for each tool's each argument, and for each piece by what is around it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from bunshin_gym.cache.keys import canonical_json
from bunshin_gym.speculate.goal import Span, spans_of
from bunshin_gym.speculate.state import Element, State
from bunshin_gym.types import ToolCall

__all__ = ["Candidate", "Fill", "Slot", "Slots", "Template", "pieces_of"]

_TEMPLATES_USED: Final = 48
_TEMPLATES_MAX: Final = 1024
_FILLS_MAX: Final = 60
_PER_TEMPLATE_MAX: Final = 120
_CANDIDATES_MAX: Final = 256
_DEAD: Final = frozenset({"hidden", "disabled"})
_KINDS: Final = ("ref", "goal", "name")
# A place, or a quoted text; escapes at its end are not part of it.
_PIECE: Final = re.compile(r"(?<=\()-?\d+, -?\d+(?=[,)])|(?<=')[^'\\]+(?=(?:\\[nt])*')")
_SOURCE_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of a template: its name, its explanation, and its JSON value if that is `lit`.

    What is explained may be a piece of the argument; `before` and `after` are the rest.
    """

    name: str
    kind: str
    literal: str = ""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.literal or f'{self.before}{self.kind}{self.after}'}"


@dataclass(frozen=True, slots=True)
class Template:
    """A tool with explained arguments."""

    tool: str
    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"{self.tool}({','.join(map(str, self.slots))})"


@dataclass(frozen=True, slots=True)
class Fill:
    """What fills a slot: an element, or a piece of the instruction."""

    slot: Slot
    value: str
    element: Element | None = None
    place: int = -1
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call that may come next, and how it was made up.

    Attributes:
        key: `call_key` of the call.
        name: its template's name.
        fills: what fills the template's slots that are not literal.
    """

    call: ToolCall
    key: str
    name: str
    fills: tuple[Fill, ...]


class Slots:
    """Counts explanations and templates; proposes calls. Not thread-safe."""

    def __init__(self) -> None:
        self._explained: Counter[tuple[str, str, str]] = Counter()
        self._values: dict[tuple[str, str], Counter[str]] = {}
        self._templates: Counter[Template] = Counter()
        self._by_task: dict[str, Counter[Template]] = {}
        self._roles: Counter[tuple[str, str, str]] = Counter()

    def learn(self, state: State, call: ToolCall) -> None:
        """Takes a recorded call into account."""
        for name, value in call.args.items():
            for piece in pieces_of(value):
                field = piece.field(name)
                for kind in _explanations(state, piece.value):
                    self._explained[call.name, field, kind] += 1
                self._values.setdefault((call.name, field), Counter())[canonical_json(piece.value)] += 1
        template = self.explain(state, call)
        self._templates[template] += 1
        self._by_task.setdefault(state.task, Counter())[template] += 1
        for slot in template.slots:
            if slot.kind == "ref":
                self._roles.update(
                    (call.name, slot.name, element.role)
                    for element in state.view.elements
                    if f"{slot.before}{element.ref}{slot.after}" == call.args[slot.name]
                )
        if len(self._templates) > 2 * _TEMPLATES_MAX:
            self._templates = Counter(dict(self._templates.most_common(_TEMPLATES_MAX)))

    def knows(self, task: str) -> bool:
        """Whether a call of this task was seen."""
        return task in self._by_task

    def explain(self, state: State, call: ToolCall) -> Template:
        """The template of a call, as far as counts tell until now."""
        return Template(
            call.name, tuple(self._slot(state, call.name, name, call.args[name]) for name in sorted(call.args))
        )

    def candidates(self, state: State) -> list[Candidate]:
        """Different calls that could be made in this state, at most 256."""
        found: dict[str, Candidate] = {}
        cache: dict[tuple[str, Slot], list[Fill]] = {}
        for template in self._usable(state.task):
            name = str(template)
            fillings = itertools.product(*self._choices(state, template, cache))
            for fills in itertools.islice(fillings, _PER_TEMPLATE_MAX):
                key = _key_of(template, fills)
                if key not in found:
                    found[key] = Candidate(_call_of(template, fills), key, name, fills)
            if len(found) >= _CANDIDATES_MAX:
                break
        return list(found.values())[:_CANDIDATES_MAX]

    def dump(self) -> dict[str, Any]:
        """All counts as JSON values."""
        return {
            "explained": [[*key, count] for key, count in self._explained.items()],
            "values": [[*key, dict(counts.most_common(64))] for key, counts in self._values.items()],
            "templates": [[_dump_template(template), count] for template, count in self._templates.items()],
            "by_task": [
                [task, [[_dump_template(template), count] for template, count in counts.items()]]
                for task, counts in self._by_task.items()
            ],
            "roles": [[*key, count] for key, count in self._roles.items()],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Slots:
        """Reads what `dump` wrote; raises KeyError, TypeError or ValueError for anything else."""
        slots = cls()
        slots._explained.update({(tool, name, kind): int(count) for tool, name, kind, count in data["explained"]})
        slots._values = {(tool, name): Counter(counts) for tool, name, counts in data["values"]}
        slots._templates = _load_templates(data["templates"])
        slots._by_task = {task: _load_templates(counts) for task, counts in data["by_task"]}
        slots._roles.update({(tool, name, role): int(count) for tool, name, role, count in data["roles"]})
        return slots

    def _slot(self, state: State, tool: str, name: str, value: Any) -> Slot:
        """The explanation that fits most often for this argument or a piece of it, among those that fit this value."""
        for piece in pieces_of(value):
            field = piece.field(name)
            values = self._values.get((tool, field), Counter())
            best, best_count = "", sum(values.values()) - len(values)
            for kind in _explanations(state, piece.value):
                count = self._explained[tool, field, kind]
                if count > 0 and count >= best_count:
                    best, best_count = kind, count
            if best:
                return Slot(name, best, "", piece.before, piece.after)
        return Slot(name, "lit", canonical_json(value))

    def _usable(self, task: str) -> list[Template]:
        """Templates of this task first, then those that are common everywhere."""
        own = [template for template, _ in self._by_task.get(task, Counter()).most_common(_TEMPLATES_USED)]
        common = [template for template, count in self._templates.most_common(_TEMPLATES_USED) if count > 1]
        return list(dict.fromkeys([*own, *common]))

    def _choices(self, state: State, template: Template, cache: dict[tuple[str, Slot], list[Fill]]) -> list[list[Fill]]:
        """For each slot that is not literal, what may fill it."""
        choices = []
        for slot in template.slots:
            if slot.kind != "lit":
                key = (template.tool if slot.kind == "ref" else "", slot)
                if key not in cache:
                    cache[key] = list(itertools.islice(self._fills(state, template.tool, slot), _FILLS_MAX))
                choices.append(cache[key])
        return choices

    def _fills(self, state: State, tool: str, slot: Slot) -> Iterator[Fill]:
        if slot.kind == "goal":
            for span in spans_of(state.view.instruction):
                yield Fill(slot, f"{slot.before}{span.text}{slot.after}", span=span)
            return
        for place, element in enumerate(state.view.elements):
            if element.flags & _DEAD:
                continue
            if slot.kind == "name" and element.name:
                yield Fill(slot, f"{slot.before}{element.name}{slot.after}", element, place)
            elif slot.kind == "ref" and element.ref and self._roles[tool, slot.name, element.role]:
                yield Fill(slot, f"{slot.before}{element.ref}{slot.after}", element, place)


@dataclass(frozen=True, slots=True)
class _Piece:
    """An argument, or a piece of one with what is around it."""

    value: Any
    before: str = ""
    after: str = ""

    def field(self, name: str) -> str:
        """What such pieces are counted under."""
        return f"{name}\0{self.before}\0{self.after}" if self.before or self.after else name


def pieces_of(value: Any) -> list[_Piece]:
    """The argument itself, then, if it is source code, what in it could have come from elsewhere."""
    pieces = [_Piece(value)]
    if isinstance(value, str) and len(value) <= _SOURCE_MAX:
        pieces += [_Piece(m[0], value[: m.start()], value[m.end() :]) for m in _PIECE.finditer(value)]
    return pieces


def _explanations(state: State, value: Any) -> Iterable[str]:
    if not isinstance(value, str) or not value:
        return ()
    view = state.view
    found = (
        any(element.ref == value for element in view.elements),
        any(span.text == value for span in spans_of(view.instruction)),
        any(element.name == value for element in view.elements),
    )
    return [kind for kind, fits in zip(_KINDS, found, strict=True) if fits]


_quote = lru_cache(maxsize=50_000)(json.dumps)


def _key_of(template: Template, fills: tuple[Fill, ...]) -> str:
    """`call_key` of the call, put together from its slots, which are in the order of their names."""
    values = iter(fills)
    parts = [
        f"{_quote(slot.name)}:{slot.literal if slot.kind == 'lit' else _quote(next(values).value)}"
        for slot in template.slots
    ]
    return f"{template.tool}{{{','.join(parts)}}}"


def _call_of(template: Template, fills: tuple[Fill, ...]) -> ToolCall:
    args = {slot.name: json.loads(slot.literal) for slot in template.slots if slot.kind == "lit"}
    args |= {fill.slot.name: fill.value for fill in fills}
    return ToolCall(name=template.tool, args=args)


def _dump_template(template: Template) -> list[Any]:
    slots = [[slot.name, slot.kind, slot.literal, slot.before, slot.after] for slot in template.slots]
    return [template.tool, slots]


def _load_templates(counts: Iterable[tuple[list[Any], int]]) -> Counter[Template]:
    return Counter(
        {Template(tool, tuple(Slot(*slot) for slot in slots)): int(count) for (tool, slots), count in counts}
    )
