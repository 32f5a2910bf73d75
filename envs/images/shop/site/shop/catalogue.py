# SPDX-License-Identifier: Apache-2.0
"""What the shop holds, as plain data made from a seed: equal seeds make equal shops."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from shop import words

SEED = 20260101
PER_CATEGORY = 18
OPENED = datetime(2025, 1, 6, 9, 0, tzinfo=UTC)
STAFF = ("manager@shop.test", "open-the-till-7")
VOUCHER = ("SPRING10", 10)
ORDER_STATES = ("Pending", "Being processed", "Shipped", "Delivered", "Cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a customer wrote about a product."""

    author: int
    score: int
    title: str
    body: str
    when: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One article."""

    upc: str
    title: str
    category: str
    department: str
    brand: str
    series: str
    colour: str
    material: str
    weight_g: int
    warranty_years: int
    price: Decimal
    stock: int
    description: str
    added: datetime
    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A customer with an account."""

    email: str
    password: str
    first_name: str
    last_name: str
    line1: str
    town: str
    postcode: str
    phone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A past order."""

    number: str
    person: int
    status: str
    when: datetime
    lines: tuple[tuple[int, int], ...]
    """Product's place in the catalogue, and how many."""


@dataclass(frozen=True, slots=True)
class Shop:
    """All of it."""

    products: list[Product] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)

    def product(self, title: str) -> Product:
        """The product of that title."""
        return next(product for product in self.products if product.title == title)

    def orders_of(self, email: str) -> list[Order]:
        """A customer's orders, the newest first."""
        wanted = [order for order in self.orders if self.people[order.person].email == email]
        return sorted(wanted, key=lambda order: order.when, reverse=True)

    def total(self, order: Order) -> Decimal:
        """What an order cost, without shipping, which is free."""
        return sum((self.products[place].price * count for place, count in order.lines), Decimal(0))


def make_shop(seed: int = SEED) -> Shop:
    """Makes the shop of a seed."""
    shop = Shop()
    shop.people.extend(_people())
    for department, categories in words.DEPARTMENTS.items():
        for category in categories:
            rng = random.Random(f"{seed}/{category}")
            shop.products.extend(_category(department, category, rng, len(shop.products)))
    shop.orders.extend(_orders(shop, random.Random(f"{seed}/orders")))
    return shop


def _people() -> list[Person]:
    return [
        Person(
            email=f"{first.lower()}@shop.test",
            password=f"{last.lower()}-{first.lower()}-{postcode}",
            first_name=first,
            last_name=last,
            line1=street,
            town=town,
            postcode=postcode,
            phone=f"+1 617 555 01{number:02d}",
        )
        for number, (first, last, street, town, postcode) in enumerate(words.PEOPLE, start=10)
    ]


def _category(department: str, category: str, rng: random.Random, first: int) -> list[Product]:
    noun, cheapest, dearest, weights, materials = words.KINDS[category]
    pairs = [(brand, series) for series in words.SERIES for brand in words.BRANDS]
    prices = rng.sample(range(cheapest * 4, dearest * 4), PER_CATEGORY)
    found = []
    for number, (brand, series) in enumerate(rng.sample(pairs, PER_CATEGORY)):
        colour, material = rng.choice(list(words.COLOURS)), rng.choice(materials)
        title = f"{brand} {series} {noun}, {colour}"
        weight, warranty = rng.randrange(weights[0], weights[1], 10), rng.randint(1, 10)
        parts = (rng.choice(words.OPENINGS), rng.choice(words.MIDDLES), rng.choice(words.ENDINGS))
        text = " ".join(parts).format(title=title, material=material, weight=weight, warranty=warranty, brand=brand)
        added = OPENED + timedelta(days=rng.randrange(0, 300), minutes=rng.randrange(600))
        found.append(
            Product(
                upc=f"{first + number + 1:05d}",
                title=title,
                category=category,
                department=department,
                brand=brand,
                series=series,
                colour=colour,
                material=material,
                weight_g=weight,
                warranty_years=warranty,
                # A quarter dollar apart, less a cent: no two of a category cost the same.
                price=Decimal(prices[number]) / 4 - Decimal("0.01"),
                stock=rng.randrange(3, 60),
                description=text,
                added=added,
                reviews=_reviews(rng, added),
            )
        )
    return found


def _reviews(rng: random.Random, added: datetime) -> tuple[Review, ...]:
    leaning = rng.choice(((1, 1, 2, 5, 7), (3, 3, 2, 1, 1)))
    made = []
    for author in rng.sample(range(len(words.PEOPLE)), rng.randrange(0, 7)):
        score = rng.choices((1, 2, 3, 4, 5), leaning)[0]
        part = rng.choice(words.PARTS)
        body = ". ".join(s[:1].upper() + s[1:] for s in _said(rng, score, part).split(". "))
        when = added + timedelta(days=rng.randrange(3, 60), minutes=rng.randrange(600))
        title = rng.choice(words.REVIEW_TITLES[score])
        made.append(Review(author=author, score=score, title=title, body=body, when=when))
    return tuple(made)


def _said(rng: random.Random, score: int, part: str) -> str:
    return rng.choice(words.REVIEW_BODIES[score]).format(part=part)


def _orders(shop: Shop, rng: random.Random) -> list[Order]:
    made = []
    moments = sorted(OPENED + timedelta(days=rng.randrange(40, 350), minutes=rng.randrange(1440)) for _ in range(44))
    for number, when in enumerate(moments):
        lines = tuple((place, rng.randint(1, 3)) for place in rng.sample(range(len(shop.products)), rng.randint(1, 4)))
        person = number % len(shop.people)
        # The last eight are open, one of each customer; the first eight are over, in all ways.
        status = ORDER_STATES[number % 5] if number < 36 else ORDER_STATES[(number % 2)]
        made.append(Order(number=str(100101 + number), person=person, status=status, when=when, lines=lines))
    return made
