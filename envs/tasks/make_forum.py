# SPDX-License-Identifier: Apache-2.0
"""Makes the forum's task files out of its content: `python envs/tasks/make_forum.py`; equal seeds make equal files."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "images" / "forum" / "site"))

from forum import content
from forum.content import Topic
from parts import (
    NOTHING,
    NUMBERS,
    PER_TEMPLATE,
    STRINGS,
    Template,
    Templates,
    Values,
    answer,
    csv_row,
    rows,
    said,
    sent,
    slug,
    write_all,
)

TOPICS = content.make_topics()
NUMBER = {topic.title: place + 1 for place, topic in enumerate(TOPICS)}
# The first category is for messages between two people.
CATEGORY = {title: place + 2 for place, title in enumerate(content.CATEGORIES)}
TEMPLATES = Templates()
FIND = [["goto", "__REDDIT__/category/{{category_id}}/{{category_slug}}/"], ["click", "link", "{{title}}"]]


def task(
    intent: str, evaluation: list[Any], steps: list[Any], *, database: list[Any] | None = None, account: str = ""
) -> Template:
    """A template of the forum."""
    return {
        "intent_template": intent,
        "account": account,
        "start_urls": ["__REDDIT__/"],
        "sites": ["reddit"],
        "eval": evaluation,
        "database": database or [],
        "solution": steps,
    }


def values_of(topic: Topic) -> Values:
    category = {"category_id": CATEGORY[topic.category], "category_slug": slug(topic.category)}
    return {"title": topic.title, "id": NUMBER[topic.title], "slug": slug(topic.title), **category}


def picks(rng: random.Random) -> list[Topic]:
    return rng.sample(TOPICS, PER_TEMPLATE)


@TEMPLATES.add
def author_of_topic(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{**values_of(topic), "answer": [topic.author]} for topic in picks(rng)]
    steps = [*FIND, ["see", "{{title}}"], answer("retrieve", "{{answer}}")]
    return task('Who started the topic "{{title}}"?', [said("retrieve", STRINGS, "{{answer}}")], steps), made


@TEMPLATES.add
def count_of_answers(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for topic in picks(rng):
        person, count = Counter(person for person, _ in topic.answers).most_common(1)[0]
        made.append({**values_of(topic), "person": person, "answer": [count]})
    steps = [*FIND, ["see", "{{person}}"], answer("retrieve", "{{answer}}")]
    intent = 'How many answers did {{person}} write to the topic "{{title}}"? The text that opens a topic is no answer.'
    return task(intent, [said("retrieve", NUMBERS, "{{answer}}")], steps), made


@TEMPLATES.add
def open_topic(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{**values_of(topic), "category": topic.category} for topic in picks(rng)]
    checks = [said("navigate", NOTHING), sent("__REDDIT__/topic/{{id}}/{{slug}}/")]
    intent = 'Open the topic "{{title}}" in {{category}}.'
    return task(intent, checks, [*FIND, answer("navigate")]), made


@TEMPLATES.add
def write_answer(rng: random.Random) -> tuple[Template, list[Values]]:
    texts = ("Thank you, that helped me.", "I will try it this week.", "Mine does that too.")
    people = rng.sample(content.PEOPLE, PER_TEMPLATE)
    made = [
        {**values_of(topic), "account": person, "text": text}
        for topic, person, text in zip(picks(rng), people, texts, strict=True)
    ]
    query = (
        "select c.comment from spirit_comment_comment c join auth_user u on c.user_id = u.id "
        "where c.topic_id = {{id}} and u.username = '{{account}}' order by c.id desc limit 1"
    )
    steps = [
        *FIND,
        ["goto", "__REDDIT__/comment/{{id}}/publish/"],
        ["fill", "textbox", "Comment", "{{text}}"],
        ["click", "button", "Publish"],
        ["see", "{{text}}"],
        answer("mutate"),
    ]
    checks = [said("mutate", NOTHING), sent("__REDDIT__/comment/{{id}}/publish/", "POST", 302)]
    intent = 'Answer the topic "{{title}}" with: {{text}}'
    database = [rows(query, "{{row}}")]
    for values in made:
        values["row"] = csv_row(values["text"])
    return task(intent, checks, steps, database=database, account="{{account}}"), made


@TEMPLATES.add
def start_topic(rng: random.Random) -> tuple[Template, list[Values]]:
    subjects = (
        ("Swap day in May", "Who brings what?"),
        ("A question of glue", "Which one holds?"),
        ("Found a key", "Is it yours?"),
    )
    people, categories = rng.sample(content.PEOPLE, PER_TEMPLATE), rng.sample(content.CATEGORIES, PER_TEMPLATE)
    made = [
        {"account": person, "category": name, "category_id": CATEGORY[name], "title": title, "text": text}
        for person, name, (title, text) in zip(people, categories, subjects, strict=True)
    ]
    query = (
        "select t.title, t.category_id, c.comment from spirit_topic_topic t "
        "join spirit_comment_comment c on c.topic_id = t.id join auth_user u on t.user_id = u.id "
        "where u.username = '{{account}}' and t.id > " + str(len(TOPICS))
    )
    steps = [
        ["goto", "__REDDIT__/topic/publish/{{category_id}}/"],
        ["fill", "textbox", "Title", "{{title}}"],
        ["fill", "textbox", "Comment", "{{text}}"],
        ["click", "button", "Publish"],
        ["see", "{{text}}"],
        answer("mutate"),
    ]
    checks = [said("mutate", NOTHING)]
    intent = 'Start a topic in {{category}} with the title "{{title}}" and the text "{{text}}"'
    database = [rows(query, "{{title}},{{category_id}},{{text}}")]
    return task(intent, checks, steps, database=database, account="{{account}}"), made


if __name__ == "__main__":
    write_all(Path(__file__).resolve().parent / "forum", TEMPLATES, first_id=201)
