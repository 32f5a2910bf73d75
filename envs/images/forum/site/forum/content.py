# SPDX-License-Identifier: Apache-2.0
"""What was written in the forum, as plain data made from a seed: equal seeds make equal forums."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

SEED = 20260202
OPENED = datetime(2025, 2, 3, 8, 0, tzinfo=UTC)
PASSWORD = "open-house-{name}"
PEOPLE = ("anouk", "bela", "ciro", "dagny", "emre", "fenja", "gil", "hedda")
STAFF = "warden"
CATEGORIES = ("Gardens", "Bicycles", "Baking", "Old Radios")

_SUBJECTS = {
    "Gardens": ("tomatoes under glass", "a hedge that birds like", "moss in the lawn", "pruning an old apple tree"),
    "Bicycles": ("a dynamo lamp", "wide tyres on gravel", "a chain that squeaks", "brakes in the rain"),
    "Baking": ("a rye starter", "steam in a home oven", "buns that stay soft", "a crust that cracks"),
    "Old Radios": ("a dial cord", "hum in the speaker", "valves that glow blue", "a wooden case"),
}
_ASKS = (
    "What do you do about {subject}?",
    "My troubles with {subject}",
    "In praise of {subject}",
    "Notes on {subject}",
)
_FIRST = (
    "I have been at this for {n} weeks and would like to hear how others go about {subject}.",
    "After {n} attempts I have a way with {subject} that works for me. Is there a better one?",
    "My neighbour swears by {n} drops of oil when it comes to {subject}. Does anybody do the same?",
)
_ANSWERS = (
    "I had the same last year. It took {n} tries.",
    "Patience helps more than tools. I waited {n} days.",
    "Do not spend more than {n} coins on it.",
    "Ask at the corner shop, they know all about it.",
    "That is how my grandmother did it, {n} times a year.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: its first text, and what was answered, as (person, text)."""

    title: str
    category: str
    author: str
    text: str
    answers: tuple[tuple[str, str], ...]
    when: datetime


def make_topics(seed: int = SEED) -> list[Topic]:
    """Makes the topics of a seed, the oldest first."""
    rng = random.Random(f"{seed}/topics")
    pairs = [(c, subject, ask) for c in CATEGORIES for subject in _SUBJECTS[c] for ask in rng.sample(_ASKS, 2)]
    rng.shuffle(pairs)
    topics = []
    for number, (category, subject, ask) in enumerate(pairs):
        author = rng.choice(PEOPLE)
        others = rng.choices(PEOPLE, k=rng.randrange(1, 8))
        answers = tuple((person, rng.choice(_ANSWERS).format(n=rng.randrange(2, 40))) for person in others)
        title = ask.format(subject=subject)
        text = rng.choice(_FIRST).format(n=rng.randrange(2, 40), subject=subject)
        when = OPENED + timedelta(days=number * 5, minutes=rng.randrange(900))
        topics.append(Topic(title=title, category=category, author=author, text=text, answers=answers, when=when))
    return topics
