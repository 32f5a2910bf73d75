# SPDX-License-Identifier: Apache-2.0
"""Makes the shop's task files out of its catalogue: `python envs/tasks/make_shop.py`; equal seeds make equal files."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "images" / "shop" / "site"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from parts import (
    MONEY,
    NOTHING,
    NUMBERS,
    PER_TEMPLATE,
    STRINGS,
    Make,
    Template,
    Values,
    answer,
    rows,
    said,
    sent,
    write_all,
)
from shop import words
from shop.catalogue import Order, Product, make_shop

SHOP = make_shop()
NUMBER = {product.title: place + 1 for place, product in enumerate(SHOP.products)}
TEMPLATES: dict[str, Make] = {}


def template(make: Make) -> None:
    """Registers a template under its function's name."""
    TEMPLATES[make.__name__.replace("_", "-")] = make


# ---- parts of templates ---------------------------------------------------------------------------


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


def search(words_: str) -> list[Any]:
    return [["fill", "textbox", "Search", words_], ["click", "button", "Search"]]


def slug(product: Product) -> str:
    return re.sub(r"[^a-z0-9]+", "-", product.title.lower()).strip("-") + f"_{NUMBER[product.title]}"


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


def plain(number: Decimal) -> float:
    return float(number)


OPEN = [*search("{{product}}"), ["click", "link", "{{product}}"]]
BASKET = (
    "select quantity from basket_line join basket_basket on basket_id = basket_basket.id "
    "join auth_user on owner_id = auth_user.id"
)
ORDERED = (
    "select l.title, l.quantity from order_line l join order_order o on l.order_id = o.id "
    "join auth_user u on o.user_id = u.id where u.email = '{{account}}' and o.number < '100101' order by l.title"
)
"""What was ordered since the task began: new orders are numbered from 100001 on."""
PLACE = [
    ["goto", "__SHOPPING__/checkout/shipping-address/"],
    ["click", "button", "Ship to your default shipping address"],
    ["click", "link", "Continue"],
    ["click", "button", "Place order"],
    ["see", "your order number is"],
]
PLACED = sent("__SHOPPING__/checkout/preview/", "POST", 302)


# ---- questions -------------------------------------------------------------------------------------


@template
def price_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [plain(p.price)], "shown": f"${p.price}"} for p in picks(rng)]
    return ask("What does the {{product}} cost?", MONEY, [*OPEN, ["see", "{{shown}}"]]), made


@template
def cheapest_in_category(rng: random.Random) -> tuple[Template, list[Values]]:
    steps = [["click", "link", "{{category}}"], ["goto", "{{url}}?sort_by=price-asc"], ["click", "link", "{{product}}"]]
    made = []
    for category in categories(rng):
        product = min(within(category), key=lambda p: p.price)
        values = {"category": category, "url": category_url(category)}
        made.append({**values, "product": product.title, "answer": [product.title]})
    return ask("Which product among the {{category}} is the cheapest? Answer with its full name.", STRINGS, steps), made


@template
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
        made.append({**values, "answer": [{"min": plain(low), "max": plain(high)}]})
    item = {"type": "object", "properties": {"min": MONEY["items"], "max": MONEY["items"]}}
    intent = 'What is the price range of the {{category}}? Answer with one object with the keys "min" and "max".'
    return ask(intent, {"type": "array", "items": item}, steps), made


@template
def material_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [p.material]} for p in picks(rng)]
    return ask("What is the {{product}} made of?", STRINGS, [*OPEN, ["see", "Material"]]), made


@template
def longer_warranty(rng: random.Random) -> tuple[Template, list[Values]]:
    steps = [
        *[[*step[:-1], "{{first}}"] if step[-1] == "{{product}}" else step for step in OPEN],
        ["see", "Warranty in years"],
        *[[*step[:-1], "{{second}}"] if step[-1] == "{{product}}" else step for step in OPEN],
        ["see", "Warranty in years"],
    ]
    made = []
    while len(made) < PER_TEMPLATE:
        first, second = rng.sample(within(rng.choice(list(words.KINDS))), 2)
        if first.warranty_years != second.warranty_years:
            best = max((first, second), key=lambda p: p.warranty_years)
            made.append({"first": first.title, "second": second.title, "answer": [best.title]})
    intent = "Which has the longer warranty, the {{first}} or the {{second}}? Answer with its full name."
    return ask(intent, STRINGS, steps), made


@template
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


@template
def count_of_reviews(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [len(p.reviews)]} for p in picks(rng, lambda p: len(p.reviews) > 2)]
    return ask("How many reviews does the {{product}} have?", NUMBERS, [*OPEN, ["see", "Number of reviews"]]), made


@template
def count_of_matches(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for category in categories(rng):
        colour = Counter(p.colour for p in within(category)).most_common(1)[0][0]
        asked = f"{colour} {words.KINDS[category][0]}"
        count = sum(all(word.lower() in p.title.lower() for word in asked.split()) for p in SHOP.products)
        made.append({"words": asked, "answer": [count], "shown": f"Found {count} results"})
    steps = [*search("{{words}}"), ["see", "results."]]
    return ask('How many products does a search for "{{words}}" find?', NUMBERS, steps), made


@template
def stock_of_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "answer": [p.stock], "shown": f"({p.stock} available)"} for p in picks(rng)]
    return ask("How many of the {{product}} are in stock?", NUMBERS, [*OPEN, ["see", "{{shown}}"]]), made


@template
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


@template
def status_of_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        order = rng.choice(SHOP.orders_of(email))
        made.append({"account": email, "number": order.number, "answer": [order.status]})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["click", "link", "{{number}}"]]
    return ask(
        "What is the status of my order {{number}}?", STRINGS, [*steps, ["see", "Status"]], account="{{account}}"
    ), made


@template
def total_of_newest_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        total = SHOP.total(SHOP.orders_of(email)[0])
        made.append({"account": email, "answer": [plain(total)], "shown": f"${total:,}"})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["see", "{{shown}}"]]
    return ask("What was the total of my most recent order?", MONEY, steps, account="{{account}}"), made


@template
def spent_in_year(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        counted = [order for order in SHOP.orders_of(email) if order.status != "Cancelled"]
        total = sum((SHOP.total(order) for order in counted), Decimal(0))
        numbers = [order.number for order in SHOP.orders_of(email)]
        made.append({"account": email, "answer": [plain(total)], "newest": numbers[0]})
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["see", "{{newest}}"]]
    intent = "How much did I spend in 2025 in all, cancelled orders not counted?"
    return ask(intent, MONEY, steps, account="{{account}}"), made


# ---- pages to open --------------------------------------------------------------------------------


@template
def open_product(rng: random.Random) -> tuple[Template, list[Values]]:
    def alone(product: Product) -> bool:
        same = [p for p in within(product.category) if (p.brand, p.colour) == (product.brand, product.colour)]
        return len(same) == 1

    made = [
        {"colour": p.colour.lower(), "noun": noun(p.category), "brand": p.brand, "product": p.title, "slug": slug(p)}
        for p in picks(rng, alone)
    ]
    steps = [*search("{{brand}} {{colour}} {{noun}}"), ["click", "link", "{{product}}"]]
    checks = [sent("__SHOPPING__/catalogue/{{slug}}/")]
    return act(
        "Open the page of the {{colour}} {{noun}} by {{brand}}.", "navigate", checks, [], steps, account=""
    ), made


@template
def list_by_price(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"category": category, "url": category_url(category)} for category in categories(rng)]
    steps = [["click", "link", "{{category}}"], ["select", "combobox", "Sort by", "Price low to high"]]
    check = sent("{{url}}", query_params={"sort_by": ["price-asc"]})
    check["ignored_query_params"] = ["q", "page"]
    return act("List the {{category}} by price, the cheapest first.", "navigate", [check], [], steps, account=""), made


@template
def open_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"account": email, "number": SHOP.orders_of(email)[-1].number} for email in people(rng)]
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["click", "link", "{{number}}"]]
    checks = [sent("__SHOPPING__/accounts/orders/{{number}}/")]
    return act("Open the page of the oldest order of mine.", "navigate", checks, [], steps), made


# ---- things to do ----------------------------------------------------------------------------------


@template
def add_to_cart(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [
        {"account": email, "product": p.title, "id": NUMBER[p.title]}
        for email, p in zip(people(rng), picks(rng), strict=True)
    ]
    database = [rows(f"{BASKET} where product_id = {{{{id}}}} and email = '{{{{account}}}}' and status = 'Open'", 1)]
    checks = [sent("__SHOPPING__/basket/add/{{id}}/", "POST", 302)]
    steps = [*OPEN, ["click", "button", "Add to cart"]]
    return act("Put the {{product}} into my cart.", "mutate", checks, database, steps), made


@template
def several_in_cart(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [
        {"account": email, "product": p.title, "id": NUMBER[p.title], "count": count}
        for email, p, count in zip(people(rng), picks(rng, lambda p: p.stock > 9), (3, 5, 8), strict=True)
    ]
    database = [
        rows(f"{BASKET} where product_id = {{{{id}}}} and email = '{{{{account}}}}' and status = 'Open'", "{{count}}")
    ]
    checks = [sent("__SHOPPING__/basket/", "POST")]
    steps = [
        *OPEN,
        ["click", "button", "Add to cart"],
        ["goto", "__SHOPPING__/basket/"],
        ["fill", "spinbutton", "", "{{count_text}}"],
        ["click", "button", "Update"],
    ]
    for values in made:
        values["count_text"] = str(values["count"])
    return act("Put {{count}} of the {{product}} into my cart.", "mutate", checks, database, steps), made


@template
def buy(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"account": email, "product": p.title} for email, p in zip(people(rng), picks(rng), strict=True)]
    database = [rows(ORDERED, '"{{product}}",1')]
    steps = [*OPEN, ["click", "button", "Add to cart"], *PLACE]
    intent = "Buy one {{product}} and have it sent to my usual address."
    return act(intent, "mutate", [PLACED], database, steps), made


@template
def buy_two(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        first, second = sorted(rng.sample(SHOP.products, 2), key=lambda p: p.title)
        made.append({"account": email, "first": first.title, "second": second.title})
    database = [rows(ORDERED, '"{{first}}",1', '"{{second}}",1')]
    steps: list[Any] = []
    for name in ("{{first}}", "{{second}}"):
        steps += [*search(name), ["click", "link", name], ["click", "button", "Add to cart"]]
    intent = "Order one {{first}} and one {{second}} together, to my usual address."
    return act(intent, "mutate", [PLACED], database, [*steps, *PLACE]), made


@template
def buy_cheapest(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email, category in zip(people(rng), categories(rng), strict=True):
        product = min(within(category), key=lambda p: p.price)
        values = {"account": email, "noun": noun(category), "url": category_url(category)}
        made.append({**values, "product": product.title})
    database = [rows(ORDERED, '"{{product}}",1')]
    steps = [
        ["goto", "{{url}}?sort_by=price-asc"],
        ["click", "link", "{{product}}"],
        ["click", "button", "Add to cart"],
    ]
    intent = "Order the cheapest {{noun}} that the shop has, to my usual address."
    return act(intent, "mutate", [PLACED], database, [*steps, *PLACE]), made


@template
def ship_elsewhere(rng: random.Random) -> tuple[Template, list[Values]]:
    places = (
        ("41 Rope Walk", "Eastham", "04605"),
        ("9 Fern Bank", "Coldwater", "05301"),
        ("77 High Row", "Larch", "06520"),
    )
    made = []
    for email, product, (line1, town, postcode) in zip(people(rng), picks(rng), places, strict=True):
        person = next(person for person in SHOP.people if person.email == email)
        names = {"first": person.first_name, "last": person.last_name}
        made.append(
            {"account": email, "product": product.title, **names, "line1": line1, "town": town, "postcode": postcode}
        )
    address = (
        "select a.line1, a.line4, a.postcode from order_order o "
        "join order_shippingaddress a on o.shipping_address_id = a.id "
        "join auth_user u on o.user_id = u.id where u.email = '{{account}}' and o.number < '100101'"
    )
    steps = [
        *OPEN,
        ["click", "button", "Add to cart"],
        ["goto", "__SHOPPING__/checkout/shipping-address/"],
        ["fill", "textbox", "First name", "{{first}}"],
        ["fill", "textbox", "Last name", "{{last}}"],
        ["fill", "textbox", "First line of address", "{{line1}}"],
        ["fill", "textbox", "City", "{{town}}"],
        ["fill", "textbox", "Post/Zip-code", "{{postcode}}"],
        ["click", "button", "Continue"],
        *PLACE[2:],
    ]
    database = [rows(ORDERED, '"{{product}}",1'), rows(address, "{{line1}},{{town}},{{postcode}}")]
    intent = "Order one {{product}} in my name, but to {{line1}}, {{town}}, {{postcode}}, United States."
    return act(intent, "mutate", [PLACED], database, steps), made


@template
def buy_with_voucher(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email, product in zip(people(rng), picks(rng, lambda p: p.price > 20), strict=True):
        made.append({"account": email, "product": product.title})
    used = (
        "select d.voucher_code from order_orderdiscount d join order_order o on d.order_id = o.id "
        "join auth_user u on o.user_id = u.id where u.email = '{{account}}'"
    )
    steps = [
        *OPEN,
        ["click", "button", "Add to cart"],
        ["goto", "__SHOPPING__/basket/"],
        ["click", "link", "I have a coupon code"],
        ["fill", "textbox", "Code", "SPRING10"],
        ["click", "button", "Add coupon"],
        *PLACE,
    ]
    database = [rows(ORDERED, '"{{product}}",1'), rows(used, "SPRING10")]
    intent = "Order one {{product}} with the coupon code SPRING10, to my usual address."
    return act(intent, "mutate", [PLACED], database, steps), made


@template
def order_again(rng: random.Random) -> tuple[Template, list[Values]]:
    def clear(order: Order) -> bool:
        return all(SHOP.products[place].stock > count for place, count in order.lines)

    made = []
    for email in people(rng):
        order = next(order for order in SHOP.orders_of(email) if clear(order))
        lines = sorted((SHOP.products[place].title, count) for place, count in order.lines)
        made.append(
            {"account": email, "number": order.number, "lines": [f'"{title}",{count}' for title, count in lines]}
        )
    query = (
        "select p.title, l.quantity from basket_line l join basket_basket b on l.basket_id = b.id "
        "join auth_user u on b.owner_id = u.id join catalogue_product p on p.id = l.product_id "
        "where u.email = '{{account}}' and b.status = 'Open' order by p.title collate \"C\""
    )
    steps = [["goto", "__SHOPPING__/accounts/orders/{{number}}/"], ["click", "button", "Re-order all items"]]
    checks = [sent("__SHOPPING__/accounts/orders/{{number}}/", "POST", 302)]
    intent = "Put all that I had in order {{number}} into my cart again, but do not order it yet."
    return act(intent, "mutate", checks, [{"query": query, "rows": "{{lines}}"}], steps), made


@template
def write_review(rng: random.Random) -> tuple[Template, list[Values]]:
    bodies = ("Light, and just right.", "It does what it should.", "A bit dear, but it lasts.")
    made = []
    for email, score, body in zip(people(rng), (5, 3, 4), bodies, strict=True):
        author = next(n for n, person in enumerate(SHOP.people) if person.email == email)
        product = rng.choice([p for p in SHOP.products if all(r.author != author for r in p.reviews)])
        values = {"account": email, "product": product.title, "id": NUMBER[product.title], "score": score}
        made.append({**values, "title": f"My {score} stars", "body": body})
    query = (
        "select r.score, r.title, r.body from reviews_productreview r join auth_user u on r.user_id = u.id "
        "where r.product_id = {{id}} and u.email = '{{account}}'"
    )
    steps = [
        *OPEN,
        ["click", "link", "Write a review"],
        ["fill", "textbox", "Title", "{{title}}"],
        ["click", "generic", "", "{{score}}"],
        ["fill", "textbox", "Body", "{{body}}"],
        ["click", "button", "Save review"],
    ]
    for values in made:
        quoted = f'"{values["body"]}"' if "," in values["body"] else values["body"]
        values["row"] = f"{values['score']},{values['title']},{quoted}"
    intent = 'Review the {{product}}: {{score}} stars, with the title "{{title}}" and the text "{{body}}"'
    return act(intent, "mutate", [], [rows(query, "{{row}}")], steps), made


@template
def add_to_wish_list(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [
        {"account": email, "product": p.title, "id": NUMBER[p.title]}
        for email, p in zip(people(rng), picks(rng), strict=True)
    ]
    query = (
        "select l.product_id from wishlists_line l join wishlists_wishlist w on l.wishlist_id = w.id "
        "join auth_user u on w.owner_id = u.id where u.email = '{{account}}'"
    )
    steps = [*OPEN, ["click", "button", "Add to wish list"]]
    return act("Add the {{product}} to my wish list.", "mutate", [], [rows(query, "{{id}}")], steps), made


@template
def change_name(rng: random.Random) -> tuple[Template, list[Values]]:
    names = (("Alva", "Ferris"), ("Corin", "Ode"), ("Hanne", "Vik"))
    made = [
        {"account": email, "first": first, "last": last}
        for email, (first, last) in zip(people(rng), names, strict=True)
    ]
    query = "select first_name, last_name from auth_user where email = '{{account}}'"
    steps = [
        ["click", "link", "Account"],
        ["click", "link", "Edit profile"],
        ["fill", "textbox", "First name", "{{first}}"],
        ["fill", "textbox", "Last name", "{{last}}"],
        ["click", "button", "Save"],
    ]
    checks = [sent("__SHOPPING__/accounts/profile/edit/", "POST", 302)]
    return act(
        "Change my name to {{first}} {{last}}.", "mutate", checks, [rows(query, "{{first}},{{last}}")], steps
    ), made


@template
def add_address(rng: random.Random) -> tuple[Template, list[Values]]:
    places = (
        ("2 Lock Side", "Barrow", "04401"),
        ("15 Vine Court", "Elmstead", "05601"),
        ("30 Kiln Yard", "Oakley", "02840"),
    )
    made = [
        {"account": email, "line1": line1, "town": town, "postcode": postcode}
        for email, (line1, town, postcode) in zip(people(rng), places, strict=True)
    ]
    query = (
        "select line1, line4, postcode from address_useraddress a join auth_user u on a.user_id = u.id "
        "where u.email = '{{account}}' order by a.id offset 1"
    )
    steps = [
        ["goto", "__SHOPPING__/accounts/addresses/add/"],
        ["fill", "textbox", "First name", "Pat"],
        ["fill", "textbox", "Last name", "Quill"],
        ["fill", "textbox", "First line of address", "{{line1}}"],
        ["fill", "textbox", "City", "{{town}}"],
        ["fill", "textbox", "Post/Zip-code", "{{postcode}}"],
        ["select", "combobox", "Country", "United States"],
        ["click", "button", "Save"],
    ]
    checks = [sent("__SHOPPING__/accounts/addresses/add/", "POST", 302)]
    intent = "Add this address to my address book: Pat Quill, {{line1}}, {{town}}, {{postcode}}, United States."
    return act(intent, "mutate", checks, [rows(query, "{{line1}},{{town}},{{postcode}}")], steps), made


# ---- the staff's work --------------------------------------------------------------------------------


@template
def move_order_on(rng: random.Random) -> tuple[Template, list[Values]]:
    following = {"Pending": "Being processed", "Being processed": "Shipped", "Shipped": "Delivered"}
    made = []
    for status, new in following.items():
        order = rng.choice([order for order in SHOP.orders if order.status == status])
        made.append({"number": order.number, "status": new})
    steps = [
        ["goto", "__SHOPPING_ADMIN__/orders/{{number}}/"],
        ["see", "{{status}}"],
        ["click", "button", "Change status"],
    ]
    checks = [sent("__SHOPPING_ADMIN__/orders/{{number}}/", "POST", 302)]
    query = "select status from order_order where number = '{{number}}'"
    return manage(
        'Set the status of order {{number}} to "{{status}}".', checks, [rows(query, "{{status}}")], steps
    ), made


@template
def change_price(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [
        {"product": p.title, "id": NUMBER[p.title], "price": price}
        for p, price in zip(picks(rng), ("49.50", "12.25", "310.00"), strict=True)
    ]
    steps = [
        ["goto", "__SHOPPING_ADMIN__/catalogue/products/{{id}}/"],
        ["click", "link", "Stock and pricing"],
        ["fill", "spinbutton", "", "{{price}}", 2],
        ["click", "button", "Save", -1],
    ]
    query = "select price from partner_stockrecord where product_id = {{id}}"
    checks = [sent("__SHOPPING_ADMIN__/catalogue/products/{{id}}/", "POST", 302)]
    return manage("Set the price of the {{product}} to ${{price}}.", checks, [rows(query, "{{price}}")], steps), made


@template
def hide_product(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"product": p.title, "id": NUMBER[p.title]} for p in picks(rng)]
    steps = [
        ["goto", "__SHOPPING_ADMIN__/catalogue/products/{{id}}/"],
        ["click", "checkbox", "Is public"],
        ["click", "button", "Save", -1],
    ]
    query = "select is_public from catalogue_product where id = {{id}}"
    others = "select count(*) from catalogue_product where is_public"
    checks = [sent("__SHOPPING_ADMIN__/catalogue/products/{{id}}/", "POST", 302)]
    intent = "Take the {{product}} off the shop's pages, without deleting it."
    return manage(intent, checks, [rows(query, "f"), rows(others, len(SHOP.products) - 1)], steps), made


if __name__ == "__main__":
    write_all(Path(__file__).resolve().parent / "shop", TEMPLATES, first_id=101)
