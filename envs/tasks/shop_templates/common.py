# SPDX-License-Identifier: Apache-2.0
"""The shop that the templates are filled from, and what they are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from parts import NOTHING, PER_TEMPLATE, Template, answer, said
from shop import words
from shop.catalogue import Product, make_shop

SHOP = make_shop()
NUMBER = {product.title: place + 1 for place, product in enumerate(SHOP.products)}


def ask(intent: str, schema: dict[str, Any], steps: list[Any], *, account: str = "") -> Template:
    """A question whose answer is the value `answer`."""
    return {
        "intent_template": intent,
        "account": account,
        "start_urls": ["__SHOPPING__/catalogue/"],
        "sites": ["shopping"],
        "eval": [said("retrieve", schema, "{{answer}}")],
        "database": [],
        "solution": [*steps, answer("retrieve", "{{answer}}")],
    }


def act(
    intent: str, kind: str, checks: list[Any], database: list[Any], steps: list[Any], *, account: str = "{{account}}"
) -> Template:
    """Something to be done, or a page to be opened."""
    return {
        "intent_template": intent,
        "account": account,
        "start_urls": ["__SHOPPING__/catalogue/"],
        "sites": ["shopping"],
        "eval": [said(kind, NOTHING), *checks],
        "database": database,
        "solution": [*steps, answer(kind)],
    }


def manage(intent: str, checks: list[Any], database: list[Any], steps: list[Any]) -> Template:
    """Something that a member of the staff does."""
    made = act(intent, "mutate", checks, database, steps, account="manager@shop.test")
    return {**made, "sites": ["shopping_admin"], "start_urls": ["__SHOPPING_ADMIN__/"]}


def search(text: str) -> list[Any]:
    return [["fill", "textbox", "Search", text], ["click", "button", "Search"]]


def find(title: str) -> list[Any]:
    """Steps that open a product's page."""
    return [*search(title), ["click", "link", title]]


def category_url(category: str) -> str:
    number = 0
    for department, categories in words.DEPARTMENTS.items():
        number += 1
        for name in categories:
            number += 1
            if name == category:
                return (
                    f"__SHOPPING__/catalogue/category/{department.lower()}/{name.lower().replace(' ', '-')}_{number}/"
                )
    raise KeyError(category)


def picks(rng: random.Random, keep: Callable[[Product], bool] = lambda product: True) -> list[Product]:
    return rng.sample([product for product in SHOP.products if keep(product)], PER_TEMPLATE)


def categories(rng: random.Random) -> list[str]:
    return rng.sample(list(words.KINDS), PER_TEMPLATE)


def within(category: str) -> list[Product]:
    return [product for product in SHOP.products if product.category == category]


def people(rng: random.Random) -> list[str]:
    return rng.sample([person.email for person in SHOP.people], PER_TEMPLATE)


def noun(category: str) -> str:
    return words.KINDS[category][0].lower()


OPEN = find("{{product}}")
