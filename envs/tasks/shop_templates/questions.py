# SPDX-License-Identifier: Apache-2.0
"""Questions that the pages answer."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

from parts import MONEY, NOTHING, NUMBERS, PER_TEMPLATE, STRINGS, Template, Templates, Values, answer, said
from shop import words
from shop.catalogue import Product

from shop_templates.common import OPEN, SHOP, ask, categories, category_url, find, people, picks, search, within

TEMPLATES = Templates()


@TEMPLATES.add
def price_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [float(p.price)], "shown": f"${p.price}"} for p in picks(rng)]
    return ask("What does the {{product}} cost?", MONEY, [*OPEN, ["see", "{{shown}}"]]), made


@TEMPLATES.add
def cheapest_in_category(rng: random.Random) -> tuple[Template, list[Values]]:
    steps = [["click", "link", "{{category}}"], ["goto", "{{url}}?sort_by=price-asc"], ["click", "link", "{{product}}"]]
    made = []
    for category in categories(rng):
        product = min(within(category), key=lambda p: p.price)
        values = {"category": category, "url": category_url(category)}
        made.append({**values, "product": product.title, "answer": [product.title]})
    return ask("Which product among the {{category}} is the cheapest? Answer with its full name.", STRINGS, steps), made


@TEMPLATES.add
def price_range_of_category(rng: random.Random) -> tuple[Template, list[Values]]:
    steps = [
        ["goto", "{{url}}?sort_by=price-asc"],
        ["see", "{{low}}"],
        ["goto", "{{url}}?sort_by=price-desc"],
        ["see", "{{high}}"],
    ]
    made = []
    for category in categories(rng):
        low, high = (choose(p.price for p in within(category)) for choose in (min, max))
        values = {"category": category, "url": category_url(category), "low": f"${low}", "high": f"${high}"}
        made.append({**values, "answer": [{"min": float(low), "max": float(high)}]})
    item = {"type": "object", "properties": {"min": MONEY["items"], "max": MONEY["items"]}}
    intent = 'What is the price range of the {{category}}? Answer with one object with the keys "min" and "max".'
    return ask(intent, {"type": "array", "items": item}, steps), made


@TEMPLATES.add
def material_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [p.material]} for p in picks(rng)]
    return ask("What is the {{product}} made of?", STRINGS, [*OPEN, ["see", "Material"]]), made


@TEMPLATES.add
def longer_warranty(rng: random.Random) -> tuple[Template, list[Values]]:
    steps = [
        *find("{{first}}"),
        ["see", "Warranty in years"],
        *find("{{second}}"),
        ["see", "Warranty in years"],
    ]
    made: list[Values] = []
    while len(made) < PER_TEMPLATE:
        first, second = rng.sample(within(rng.choice(list(words.KINDS))), 2)
        if first.warranty_years != second.warranty_years:
            best = max((first, second), key=lambda p: p.warranty_years)
            made.append({"first": first.title, "second": second.title, "answer": [best.title]})
    intent = "Which has the longer warranty, the {{first}} or the {{second}}? Answer with its full name."
    return ask(intent, STRINGS, steps), made


@TEMPLATES.add
def critics_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    def bad(product: Product) -> list[str]:
        return [
            f"{SHOP.people[r.author].first_name} {SHOP.people[r.author].last_name}"
            for r in product.reviews
            if r.score <= 2
        ]

    made = [{"product": p.title, "answer": bad(p), "one": bad(p)[0]} for p in picks(rng, lambda p: len(bad(p)) > 1)]
    intent = "Who gave the {{product}} one or two stars in a review? Answer with their full names."
    return ask(intent, STRINGS, [*OPEN, ["see", "{{one}}"]]), made


@TEMPLATES.add
def count_of_reviews(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [len(p.reviews)]} for p in picks(rng, lambda p: len(p.reviews) > 2)]
    return ask("How many reviews does the {{product}} have?", NUMBERS, [*OPEN, ["see", "Number of reviews"]]), made


@TEMPLATES.add
def count_of_matches(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for category in categories(rng):
        colour = Counter(p.colour for p in within(category)).most_common(1)[0][0]
        asked = f"{colour} {words.KINDS[category][0]}"
        count = sum(all(word.lower() in p.title.lower() for word in asked.split()) for p in SHOP.products)
        made.append({"words": asked, "answer": [count], "shown": f"Found {count} results"})
    steps = [*search("{{words}}"), ["see", "results."]]
    return ask('How many products does a search for "{{words}}" find?', NUMBERS, steps), made


@TEMPLATES.add
def stock_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [p.stock], "shown": f"({p.stock} available)"} for p in picks(rng)]
    return ask("How many of the {{product}} are in stock?", NUMBERS, [*OPEN, ["see", "{{shown}}"]]), made


@TEMPLATES.add
def unknown_product(rng: random.Random) -> tuple[Template, list[Values]]:
    known = {(p.brand, p.series, p.category) for p in SHOP.products}
    made = []
    for category in categories(rng):
        brand, series = next(
            (b, s) for b in rng.sample(words.BRANDS, 8) for s in words.SERIES if (b, s, category) not in known
        )
        made.append({"product": f"{brand} {series} {words.KINDS[category][0]}", "answer": None})
    steps = [*search("{{product}}"), ["see", "results."]]
    asked = ask("What does the {{product}} cost?", NOTHING, steps)
    asked["eval"] = [said("retrieve", NOTHING, None, "NOT_FOUND_ERROR")]
    asked["solution"] = [*steps, answer("retrieve", None, "NOT_FOUND_ERROR")]
    return asked, made


@TEMPLATES.add
def status_of_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        order = rng.choice(SHOP.orders_of(email))
        made.append({"account": email, "number": order.number, "answer": [order.status]})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["click", "link", "{{number}}"]]
    return ask(
        "What is the status of my order {{number}}?", STRINGS, [*steps, ["see", "Status"]], account="{{account}}"
    ), made


@TEMPLATES.add
def total_of_newest_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        total = SHOP.total(SHOP.orders_of(email)[0])
        made.append({"account": email, "answer": [float(total)], "shown": f"${total:,}"})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["see", "{{shown}}"]]
    return ask("What was the total of my most recent order?", MONEY, steps, account="{{account}}"), made


@TEMPLATES.add
def spent_in_year(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        counted = [order for order in SHOP.orders_of(email) if order.status != "Cancelled"]
        total = sum((SHOP.total(order) for order in counted), Decimal(0))
        numbers = [order.number for order in SHOP.orders_of(email)]
        made.append({"account": email, "answer": [float(total)], "newest": numbers[0]})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["see", "{{newest}}"]]
    intent = "How much did I spend in 2025 in all, cancelled orders not counted?"
    return ask(intent, MONEY, steps, account="{{account}}"), made
