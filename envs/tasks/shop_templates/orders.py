# SPDX-License-Identifier: Apache-2.0
"""Carts and orders."""

from __future__ import annotations

import random
from typing import Any

from parts import Template, Templates, Values, rows, sent
from shop.catalogue import Order

from shop_templates.common import NUMBER, OPEN, SHOP, act, categories, category_url, find, noun, people, picks, within

TEMPLATES = Templates()
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


@TEMPLATES.add
def add_to_cart(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [
        {"account": email, "product": p.title, "id": NUMBER[p.title]}
        for email, p in zip(people(rng), picks(rng), strict=True)
    ]
    database = [rows(f"{BASKET} where product_id = {{{{id}}}} and email = '{{{{account}}}}' and status = 'Open'", 1)]
    checks = [sent("__SHOPPING__/basket/add/{{id}}/", "POST", 302)]
    steps = [*OPEN, ["click", "button", "Add to cart"]]
    return act("Put the {{product}} into my cart.", "mutate", checks, database, steps), made


@TEMPLATES.add
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


@TEMPLATES.add
def buy(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"account": email, "product": p.title} for email, p in zip(people(rng), picks(rng), strict=True)]
    database = [rows(ORDERED, '"{{product}}",1')]
    steps = [*OPEN, ["click", "button", "Add to cart"], *PLACE]
    intent = "Buy one {{product}} and have it sent to my usual address."
    return act(intent, "mutate", [PLACED], database, steps), made


@TEMPLATES.add
def buy_two(rng: random.Random) -> tuple[Template, list[Values]]:
    made = []
    for email in people(rng):
        first, second = sorted(rng.sample(SHOP.products, 2), key=lambda p: p.title)
        made.append({"account": email, "first": first.title, "second": second.title})
    database = [rows(ORDERED, '"{{first}}",1', '"{{second}}",1')]
    steps: list[Any] = []
    for name in ("{{first}}", "{{second}}"):
        steps += [*find(name), ["click", "button", "Add to cart"]]
    intent = "Order one {{first}} and one {{second}} together, to my usual address."
    return act(intent, "mutate", [PLACED], database, [*steps, *PLACE]), made


@TEMPLATES.add
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


@TEMPLATES.add
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


@TEMPLATES.add
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


@TEMPLATES.add
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
