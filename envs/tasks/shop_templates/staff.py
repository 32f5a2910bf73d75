# SPDX-License-Identifier: Apache-2.0
"""The staff's work."""

from __future__ import annotations

import random

from parts import Template, Templates, Values, rows, sent

from shop_templates.common import NUMBER, SHOP, manage, picks

TEMPLATES = Templates()


@TEMPLATES.add
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


@TEMPLATES.add
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


@TEMPLATES.add
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
