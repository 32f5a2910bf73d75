# SPDX-License-Identifier: Apache-2.0
"""Reviews, wish lists, and what an account knows of its owner."""

from __future__ import annotations

import random

from parts import Template, Templates, Values, csv_row, rows, sent

from shop_templates.common import NUMBER, OPEN, SHOP, act, people, picks

TEMPLATES = Templates()


@TEMPLATES.add
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
        values["row"] = csv_row(values["score"], values["title"], values["body"])
    intent = 'Review the {{product}}: {{score}} stars, with the title "{{title}}" and the text "{{body}}"'
    return act(intent, "mutate", [], [rows(query, "{{row}}")], steps), made


@TEMPLATES.add
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


@TEMPLATES.add
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


@TEMPLATES.add
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
