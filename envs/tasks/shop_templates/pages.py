# SPDX-License-Identifier: Apache-2.0
"""Pages to open."""

from __future__ import annotations

import random

from parts import Template, Templates, Values, sent, slug
from shop.catalogue import Product

from shop_templates.common import NUMBER, SHOP, act, categories, category_url, noun, people, picks, search, within

TEMPLATES = Templates()


@TEMPLATES.add
def open_product(rng: random.Random) -> tuple[Template, list[Values]]:
    def alone(product: Product) -> bool:
        same = [p for p in within(product.category) if (p.brand, p.colour) == (product.brand, product.colour)]
        return len(same) == 1

    made = [
        {
            "colour": p.colour.lower(),
            "noun": noun(p.category),
            "brand": p.brand,
            "product": p.title,
            "slug": f"{slug(p.title)}_{NUMBER[p.title]}",
        }
        for p in picks(rng, alone)
    ]
    steps = [*search("{{brand}} {{colour}} {{noun}}"), ["click", "link", "{{product}}"]]
    checks = [sent("__SHOPPING__/catalogue/{{slug}}/")]
    return act(
        "Open the page of the {{colour}} {{noun}} by {{brand}}.", "navigate", checks, [], steps, account=""
    ), made


@TEMPLATES.add
def list_by_price(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"category": category, "url": category_url(category)} for category in categories(rng)]
    steps = [["click", "link", "{{category}}"], ["select", "combobox", "Sort by", "Price low to high"]]
    check = sent("{{url}}", query_params={"sort_by": ["price-asc"]})
    check["ignored_query_params"] = ["q", "page"]
    return act("List the {{category}} by price, the cheapest first.", "navigate", [check], [], steps, account=""), made


@TEMPLATES.add
def open_order(rng: random.Random) -> tuple[Template, list[Values]]:
    made = [{"account": email, "number": SHOP.orders_of(email)[-1].number} for email in people(rng)]
    steps = [["click", "link", "Account"], ["click", "link", "Order History"], ["click", "link", "{{number}}"]]
    checks = [sent("__SHOPPING__/accounts/orders/{{number}}/")]
    return act("Open the page of the oldest order of mine.", "navigate", checks, [], steps), made
