# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunshin_gym.cache.keys import Context, ToolSpec, call_digest, canonical_json
from bunshin_gym.errors import UsageError

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
_ARGS = st.dictionaries(st.text(), _VALUES, max_size=5)


def _shuffled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict):
        items = [(key, _shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        items = [_shuffled(item, rng) for item in value]
        return tuple(items) if rng.random() < 0.5 else items
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 and rng.random() < 0.5:
        return float(value)
    if isinstance(value, float) and rng.random() < 0.5:
        return np.float64(value)
    return value


def _same(one: object, other: object) -> bool:
    """Equality of JSON values, where True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


@given(_ARGS, st.integers())
def test_spellings_of_one_value_have_one_text(args: dict[str, object], seed: int) -> None:
    assert canonical_json(_shuffled(args, random.Random(seed))) == canonical_json(args)


@given(_VALUES, _VALUES)
def test_texts_are_equal_exactly_if_values_are(one: object, other: object) -> None:
    assert (canonical_json(one) == canonical_json(other)) == _same(one, other)


@given(_VALUES)
def test_text_is_json_of_the_same_value_and_canonical_itself(value: object) -> None:
    read = json.loads(canonical_json(value))
    assert _same(read, value)
    assert canonical_json(read) == canonical_json(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, b"x", object(), {1: 2}, [{"a": {1, 2}}]])
def test_what_is_no_json_is_refused_by_place(value: object) -> None:
    with pytest.raises(UsageError, match="arguments"):
        canonical_json(value)


def test_text_is_kept_code_point_by_code_point() -> None:
    assert canonical_json("é") != canonical_json("e\u0301")
    assert canonical_json("a ") != canonical_json("a")


def test_coordinates_are_exact_unless_the_tool_says_otherwise() -> None:
    exact, coarse = ToolSpec(), ToolSpec(steps={"x": 8.0})
    assert exact.canonical_args({"x": 100}) != exact.canonical_args({"x": 100.5})
    assert coarse.canonical_args({"x": 101, "y": 1}) == coarse.canonical_args({"x": 104, "y": 1.0})
    assert coarse.canonical_args({"x": 100, "y": 1}) != coarse.canonical_args({"x": 120, "y": 1})
    with pytest.raises(UsageError, match="'x'"):
        coarse.canonical_args({"x": "left"})


@given(st.floats(-1e6, 1e6), st.floats(0.1, 100))
def test_rounded_coordinates_are_near(value: float, step: float) -> None:
    units = json.loads(ToolSpec(steps={"x": step}).canonical_args({"x": value}))["x"]
    assert abs(units * step - value) <= step * 0.5001 + 1e-9 * abs(value)


def test_defaults_ignored_arguments_and_the_last_word() -> None:
    spec = ToolSpec(
        defaults={"button": "left"},
        ignored=frozenset({"thought"}),
        canonical=lambda args: {**args, "text": str(args.get("text", "")).casefold()},
    )
    assert spec.canonical_args({"text": "A", "thought": 1}) == spec.canonical_args({"text": "a", "button": "left"})
    assert spec.canonical_args({"text": "a"}) != spec.canonical_args({"text": "a", "button": "right"})


@pytest.mark.parametrize("step", [0, -1, math.nan, math.inf])
def test_a_step_must_be_a_length(step: float) -> None:
    with pytest.raises(UsageError, match="step"):
        ToolSpec(steps={"x": step})


def test_each_part_of_a_context_counts() -> None:
    base = {"image": "i", "task": "t", "params": {"a": 1}, "seed": 1, "options": {"screen": [640, 480]}}
    changes = {"image": "j", "task": "u", "params": {"a": 2}, "seed": 2, "options": {"screen": [640, 481]}}
    digests = {Context(**{**base, name: value}).digest() for name, value in changes.items()}  # type: ignore[arg-type]
    digests.add(Context(**base).digest())  # type: ignore[arg-type]
    assert len(digests) == 6
    assert Context(image="i", task="t", seed=1) == Context(image="i", task="t", seed=1, params={})


@given(st.lists(st.tuples(st.text(), st.text(), st.integers(0, 3)), max_size=4), st.data())
def test_a_key_stands_for_the_whole_sequence(calls: list[tuple[str, str, int]], data: st.DataObject) -> None:
    def key(sequence: list[tuple[str, str, int]]) -> bytes:
        digest = Context(image="i", task="t", seed=0).digest()
        for name, args, sample in sequence:
            digest = call_digest(digest, name, args, sample=sample)
        return digest

    other = data.draw(st.permutations(calls) | st.lists(st.tuples(st.text(), st.text(), st.integers(0, 3)), max_size=4))
    assert (key(calls) == key(list(other))) == (calls == list(other))


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert call_digest(b"p", "ab", "c") != call_digest(b"p", "a", "bc")
    assert call_digest(b"p", "a", "b", sample=1) != call_digest(b"p", "a", "b1", sample=0)
