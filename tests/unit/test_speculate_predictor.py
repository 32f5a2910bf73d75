# SPDX-License-Identifier: Apache-2.0
"""Predictors: what they learn, that they beat counting, and their files."""

from __future__ import annotations

import io
import pickle
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.model_file import SCHEMA, VERSION
from bunshin_gym.speculate.ngram import NgramPredictor
from bunshin_gym.speculate.predictor import RankingPredictor, Settings
from bunshin_gym.speculate.state import Attempt, Element, Prediction, Step, View, call_key, view_of
from bunshin_gym.types import ToolCall

WORDS = ["alpha", "bravo", "carol", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima"]


def click(ref: str) -> ToolCall:
    return ToolCall(name="click", args={"bid": ref, "button": "left", "modifiers": []})


def form_attempt(number: int, *, task: str) -> Attempt:
    """Fills the fields that the goal names, in its order, then sends the form; refs are new each time."""
    rng = random.Random(number)
    labels = rng.sample(WORDS, 4)
    values = [f"v{rng.randrange(1000)}" for _ in labels]
    refs = [str(rng.randrange(100, 900) * 10 + place) for place in range(5)]
    wanted = rng.sample(range(4), 2)
    goal = "Enter " + " and ".join(f'"{values[place]}" into {labels[place]}' for place in wanted) + ", then press Send."
    filled: dict[int, str] = {}
    steps = []

    def view() -> View:
        boxes = [
            Element(ref=ref, role="textbox", name=label, value=filled.get(place, ""))
            for place, (ref, label) in enumerate(zip(refs, labels, strict=False))
        ]
        return View(instruction=goal, elements=(*boxes, Element(ref=refs[4], role="button", name="Send")))

    for place in wanted:
        steps.append(Step(view=view(), call=ToolCall(name="fill", args={"bid": refs[place], "value": values[place]})))
        filled[place] = values[place]
    steps.append(Step(view=view(), call=click(refs[4])))
    return Attempt(task=task, steps=tuple(steps), reward=1.0)


@pytest.fixture(scope="module")
def forms() -> list[Attempt]:
    return [form_attempt(number, task=f"form-{number % 6}") for number in range(120)]


@pytest.fixture(scope="module")
def trained(forms: list[Attempt]) -> RankingPredictor:
    predictor = RankingPredictor()
    predictor.fit(forms)
    return predictor


def accuracy(predictor: Any, attempts: list[Attempt], k: int) -> float:
    right = [
        call_key(call) in [call_key(prediction.call) for prediction in predictor.predict(state, k=k)]
        for attempt in attempts
        for state, call in attempt.states()
    ]
    return sum(right) / len(right)


def test_new_tasks_and_new_refs(trained: RankingPredictor, forms: list[Attempt]) -> None:
    held_out = [form_attempt(number, task="never seen") for number in range(500, 540)]
    counting = NgramPredictor()
    for attempt in forms:
        counting.learn(attempt)
    assert accuracy(trained, held_out, 1) > 0.8
    assert accuracy(trained, held_out, 3) > 0.9
    assert accuracy(counting, held_out, 3) < 0.1


def test_known_sequences_are_known(forms: list[Attempt]) -> None:
    counting = NgramPredictor()
    counting.learn(forms[0])
    assert accuracy(counting, forms[:1], 1) == 1.0


def whimsical(attempt: Attempt, rng: random.Random) -> Attempt:
    """The same, but three calls in ten are something that nobody could guess."""
    steps = tuple(
        step if rng.random() >= 0.3 else replace(step, call=click(f"x{rng.randrange(1 << 30)}"))
        for step in attempt.steps
    )
    return replace(attempt, steps=steps)


def test_probabilities_are_calibrated(forms: list[Attempt]) -> None:
    rng = random.Random(1)
    predictor = RankingPredictor()
    predictor.fit([whimsical(attempt, rng) for attempt in forms])
    pairs = []
    for number in range(700, 800):
        attempt = whimsical(form_attempt(number, task=f"form-{number % 12}"), rng)
        for state, call in attempt.states():
            best = predictor.predict(state, k=3)
            chances = [prediction.probability for prediction in best]
            assert sum(chances) <= 1.0 + 1e-9
            assert chances == sorted(chances, reverse=True)
            pairs.append((chances[0], call_key(best[0].call) == call_key(call)))
    promised, kept = np.mean(np.array(pairs, dtype=float), axis=0)
    assert 0.5 < kept < 0.75
    assert promised == pytest.approx(kept, abs=0.1)


def test_learns_online() -> None:
    predictor = RankingPredictor()
    state = form_attempt(1, task="t").states()[0][0]
    assert list(predictor.predict(state)) == []
    for number in range(60):
        predictor.learn(form_attempt(number, task="t"))
    fresh = [form_attempt(number, task="u") for number in range(900, 920)]
    assert accuracy(predictor, fresh, 3) > 0.6


def test_learning_and_predicting_at_once(forms: list[Attempt]) -> None:
    predictor = RankingPredictor()
    errors: list[BaseException] = []

    def guarded(job: Any) -> None:
        try:
            for attempt in forms[:24]:
                job(attempt)
        except BaseException as error:  # noqa: BLE001  # handed to the test's thread
            errors.append(error)

    jobs = [predictor.learn, lambda attempt: predictor.predict(attempt.states()[-1][0])] * 2
    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def predictions(predictor: RankingPredictor) -> list[list[Prediction]]:
    return [list(predictor.predict(state)) for state, _ in form_attempt(950, task="form-2").states()]


def test_a_file_holds_all_of_it(trained: RankingPredictor, tmp_path: Path) -> None:
    path = tmp_path / "predictor.npz"
    trained.save(path)
    loaded = RankingPredictor.load(path)
    assert predictions(loaded) == predictions(trained)
    assert [file.name for file in tmp_path.iterdir()] == ["predictor.npz"]
    copy = pickle.loads(pickle.dumps(loaded))
    assert predictions(copy) == predictions(trained)
    for number in range(12):
        copy.learn(form_attempt(number + 300, task="form-2"))
    assert predictions(copy) != predictions(trained)
    assert accuracy(copy, [form_attempt(n, task="form-2") for n in range(600, 620)], 3) > 0.9


def test_files_that_are_none(trained: RankingPredictor, tmp_path: Path) -> None:
    data = trained.to_bytes()
    with np.load(io.BytesIO(data)) as file:
        parts = dict(file)
    for change, message in (
        ({"meta": np.frombuffer(b'{"schema": "x"}', dtype=np.uint8)}, "schema"),
        (
            {"meta": np.frombuffer(f'{{"schema": "{SCHEMA}", "version": {VERSION + 1}}}'.encode(), dtype=np.uint8)},
            "version",
        ),
        ({"indices": np.array([1 << 30], dtype=np.int32), "values": np.ones(1)}, "damaged"),
        ({"values": np.full_like(parts["values"], np.nan)}, "damaged"),
        ({"meta": np.array([{}], dtype=object)}, "damaged"),
        ({"calibration": np.ones(2)}, "damaged"),
    ):
        path = tmp_path / "bad.npz"
        np.savez(path, **{**parts, **change})
        with pytest.raises(UsageError, match=message):
            RankingPredictor.load(path)
    for junk in (b"", b"junk", data[: len(data) // 2]):
        with pytest.raises(UsageError, match="no predictor"):
            RankingPredictor.from_bytes(junk)


def test_nothing_to_fit() -> None:
    with pytest.raises(UsageError):
        RankingPredictor(Settings()).fit([])


def test_reading_a_tree() -> None:
    tree = (
        "RootWebArea 'Login', focused\n\t[17] paragraph ''\n\t\t[18] LabelText ''\n\t\t\tStaticText 'User'\n"
        "\t\t[19] textbox '', value='it\\'s', clickable\n\t[20] generic '', clickable\n\t\tStaticText 'Neque,'\n"
        "\t[21] checkbox \"a, 'b'\", clickable, checked=false\n"
    )
    view = view_of({"axtree_txt": tree, "goal": "Log in", "url": "file:///a/b.html?x=1#y", "focused_element_bid": "19"})
    found = {element.ref: element for element in view.elements if element.ref}
    assert found["18"].name == "User"
    assert found["20"].name == "Neque,"
    assert found["21"].name == "a, 'b'"
    assert found["21"].flags == {"clickable", "checked=false"}
    assert (view.page, view.instruction, view.focus) == ("file:///a/b.html", "Log in", "19")


@pytest.mark.parametrize("observation", [None, 3, {}, {"axtree_txt": "\x00[[\n]"}, "a; b", {"text": 5}, []])
def test_any_observation_can_be_read(observation: Any) -> None:
    assert isinstance(view_of(observation), View)
