# SPDX-License-Identifier: Apache-2.0
"""WebArena's rules of comparing, its files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bunshin_gym.errors import UsageError
from bunshin_gym.webarena.data import SITE_NAMES, load_definitions, summary
from bunshin_gym.webarena.helpers import call_helper
from bunshin_gym.webarena.scoring import contents_match, exact_match, must_include, strings_match, url_matches

RAW: dict[str, Any] = {
    "sites": ["shopping"],
    "task_id": 7,
    "storage_state": None,
    "start_url": "__SHOPPING__ |AND| __REDDIT__/f/books",
    "intent": "Do it",
    "eval": {
        "eval_types": ["string_match"],
        "reference_answers": {"exact_match": "yes"},
        "reference_url": "",
        "program_html": [],
    },
}


def _eval(**change: Any) -> dict[str, Any]:
    return {**RAW, "eval": {**RAW["eval"], **change}}


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [("Yes", " yes ", True), ("yes", "'Yes'", True), ("yes", '"yes"', True), ("yes", "yes.", False), ("'", "'", True)],
)
def test_exact_match(reference: str, answer: str, same: bool) -> None:
    assert exact_match(reference, answer) is same


@pytest.mark.parametrize(
    ("reference", "answer", "tokens", "there"),
    [
        ("0", "10 of them", True, False),
        ("0", "10 of them", False, True),
        ("0", "It is 0.", True, True),
        ("0", "0.5 kg", True, False),
        ("Red", "a RED one", True, True),
        ("blue", "a red one", False, False),
    ],
)
def test_must_include(reference: str, answer: str, tokens: bool, there: bool) -> None:
    assert must_include(reference, answer, tokens=tokens) is there


def test_a_single_phrase_is_looked_for_as_a_word() -> None:
    assert strings_match({"must_include": ["1"]}, "there are 12", intent="") == 0.0
    assert strings_match({"must_include": ["1", "2"]}, "there are 12", intent="") == 1.0
    assert strings_match({"must_include": ["a"], "exact_match": "b"}, "b", intent="") == 0.0


def test_fuzzy_answers_need_a_judge() -> None:
    with pytest.raises(ValueError, match="give a judge"):
        strings_match({"fuzzy_match": ["x"]}, "y", intent="")

    def half(*, kind: str, intent: str, reference: str, answer: str) -> float:
        return 0.5

    assert strings_match({"fuzzy_match": ["x", "z"]}, "y", intent="", judge=half) == 0.25
    assert strings_match({"fuzzy_match": "N/A"}, "n/a", intent="", judge=half) == 1.0
    assert strings_match({"fuzzy_match": "N/A"}, "no", intent="", judge=half) == 0.5


@pytest.mark.parametrize(
    ("reference", "url", "matches"),
    [
        ("http://a.test/x/", "http://a.test/x", True),
        ("http://a.test/x", "http://a.test/x/y?z=1", True),
        ("http://a.test/x", "http://a.test/y", False),
        ("http://a.test/x |OR| http://a.test/y", "http://a.test/y", True),
        ("http://a.test/x?k=1", "http://a.test/x?k=1&l=2", True),
        ("http://a.test/x?k=1", "http://a.test/x?k=2", False),
        ("http://a.test/x?k=1", "http://a.test/x", False),
        ("http://a.test/x?k=1 |OR| http://a.test/x?k=2", "http://a.test/x?k=2", True),
    ],
)
def test_addresses(reference: str, url: str, matches: bool) -> None:
    assert url_matches(reference, url) is matches


def test_contents() -> None:
    assert contents_match({"must_include": ["tea |OR| coffee", "milk"]}, "Coffee with milk")
    assert not contents_match({"must_include": ["tea |OR| coffee", "milk"]}, "Coffee")
    assert contents_match({"exact_match": ""}, " ")
    assert not contents_match({"exact_match": "a"}, "a b")


def test_a_file_is_read_and_classified(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    fuzzy = {**_eval(reference_answers={"fuzzy_match": ["x"]}), "task_id": 8, "start_url": "__SHOPPING__"}
    path.write_text(json.dumps([RAW, fuzzy]))
    found = load_definitions(path)
    assert found[7].env_name == "WebArena-shopping-7"
    assert found[7].start_urls == ("__SHOPPING__", "__REDDIT__/f/books")
    assert found[7].needed_sites == ("shopping", "reddit")
    assert found[7].refusals(sites=frozenset(["shopping"]), judge=False) == ("it needs the site reddit",)
    assert found[8].refusals(sites=frozenset(SITE_NAMES), judge=True) == ()
    assert summary(found, sites=frozenset(SITE_NAMES), judge=False) == {
        "runnable": 1,
        "its answer is compared by a language model: give a judge": 1,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {**RAW, "sites": ["moon"]},
        {**RAW, "sites": []},
        _eval(eval_types=["dice"]),
        _eval(reference_answers=None),
        _eval(reference_answers={"rough_match": "x"}),
        _eval(eval_types=["url_match"]),
        _eval(eval_types=["url_match"], reference_url="x", url_note="EXACT"),
        _eval(eval_types=["program_html"], program_html=[{"url": "last", "locator": "", "required_contents": {}}]),
        {key: value for key, value in RAW.items() if key != "intent"},
        [RAW],
    ],
)
def test_what_is_no_task_is_refused_with_its_place(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{**RAW, "task_id": 1}, wrong]))
    with pytest.raises(UsageError, match=r"tasks\.json, entry 1: not a WebArena task"):
        load_definitions(path)


def test_a_file_that_is_not_there_or_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_definitions(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(UsageError, match=r"x\.json"):
        load_definitions(tmp_path / "x.json")
    (tmp_path / "y.json").write_text(json.dumps([RAW, RAW]))
    with pytest.raises(UsageError, match="a second task 7"):
        load_definitions(tmp_path / "y.json")


class Answers:
    """A workspace in which a shop answers what it was told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    def execute(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        self.asked.append(json.loads(argv[-1]))
        return json.dumps(self.answers.pop(0))

    def evaluate(self, script: str, arg: Any = None) -> Any:
        return f"role of {arg}"


def _help(call: str, page: Any, url: str = "http://r.test/f/books/12/a/b") -> str:
    sites: Mapping[str, str] = {"shopping": "http://s.test"}
    return call_helper(call, page, url=url, sites=sites, admin=("admin", "word"))


def test_helpers() -> None:
    page = Answers("token", {"items": [{"increment_id": "000000191"}]})
    assert _help("shopping_get_latest_order_url()", page) == "http://s.test/sales/order/view/order_id/191/"
    assert [asked[0] for asked in page.asked] == ["POST", "GET"]
    assert page.asked[1][2]["Authorization"] == "Bearer token"
    reviews = [{"nickname": "a"}, {"nickname": "b", "ratings": [{"percent": 80}]}]
    assert _help("shopping_get_sku_latest_review_author('B 1')", page := Answers("t", reviews)) == "b"
    assert page.asked[1][1] == "http://s.test/rest/V1/products/B%201/reviews"
    assert _help("shopping_get_sku_latest_review_rating('B1')", Answers("t", reviews)) == "80"
    assert _help("shopping_get_sku_latest_review_rating('B1')", Answers("t", [])) == ""
    assert _help("reddit_get_post_url('__last_url__')", Answers()) == "http://r.test/f/books/12/"
    assert _help("reddit_get_post_url('__last_url__')", Answers(), "http://r.test/x") == "http://r.test/x"
    assert _help("gitlab_get_project_memeber_role(__page__, 'ann')", Answers()) == "role of ann"


@pytest.mark.parametrize(
    "call", ["open('/etc/passwd')", "reddit_get_post_url(1 + 1)", "x.y()", "a b", "__import__('os')"]
)
def test_what_a_file_says_is_never_run(call: str) -> None:
    with pytest.raises(UsageError, match="func:"):
        _help(call, Answers())
