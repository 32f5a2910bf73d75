# SPDX-License-Identifier: Apache-2.0
"""Draws a picture of each product: its colour, a shape for its kind, and marks of its own."""

from __future__ import annotations

import io
import random

from PIL import Image, ImageDraw

from shop import words
from shop.catalogue import Product

Colour = tuple[int, int, int]

SIDE = 360
_MIDDLE = SIDE // 2


def draw(product: Product) -> bytes:
    """A JPEG of the product; equal products give equal pictures."""
    rng = random.Random(product.upc)
    colour = words.COLOURS[product.colour]
    picture = Image.new("RGB", (SIDE, SIDE), _mix(colour, (250, 250, 248), 0.82))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((60, 270, 300, 310), fill=_mix(colour, (120, 120, 120), 0.6))
    _SHAPES[product.category](pen, colour, _mix(colour, (20, 20, 20), 0.45))
    for _ in range(rng.randrange(2, 6)):
        x, y, r = rng.randrange(130, 230), rng.randrange(130, 240), rng.randrange(3, 9)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=_mix(colour, (255, 255, 255), 0.5))
    pen.text((14, 12), f"{product.brand} {product.series}", fill=(70, 70, 70), font_size=17)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=82)
    return out.getvalue()


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a * (1 - share) + b * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _kettle(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.polygon([(120, 280), (240, 280), (222, 130), (138, 130)], fill=fill, outline=dark)
    pen.arc((205, 120, 300, 240), 250, 100, fill=dark, width=14)
    pen.polygon([(130, 160), (84, 118), (104, 110), (142, 136)], fill=fill, outline=dark)
    pen.rectangle((150, 112, 210, 130), fill=dark)


def _pan(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.ellipse((70, 150, 240, 280), fill=dark)
    pen.ellipse((84, 158, 226, 264), fill=fill)
    pen.rounded_rectangle((228, 196, 340, 218), 9, fill=dark)


def _knife(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.polygon([(60, 220), (230, 170), (230, 226), (110, 246)], fill=(206, 210, 214), outline=dark)
    pen.rounded_rectangle((228, 166, 326, 206), 12, fill=fill, outline=dark)


def _lamp(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.line((180, 280, 180, 180, 230, 120), fill=dark, width=10)
    pen.polygon([(190, 130), (262, 88), (290, 150), (216, 168)], fill=fill, outline=dark)
    pen.ellipse((120, 264, 240, 292), fill=dark)


def _chair(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((120, 90, 236, 190), 18, fill=fill, outline=dark)
    pen.rounded_rectangle((104, 192, 252, 220), 10, fill=fill, outline=dark)
    for x in (118, 238):
        pen.line((x, 220, x, 290), fill=dark, width=9)


def _notebook(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((110, 100, 260, 286), 8, fill=fill, outline=dark, width=3)
    pen.rectangle((134, 100, 146, 286), fill=dark)
    pen.rectangle((166, 140, 240, 176), fill=(250, 250, 245))


def _tent(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.polygon([(60, 284), (180, 110), (306, 284)], fill=fill, outline=dark)
    pen.polygon([(150, 284), (182, 160), (216, 284)], fill=dark)


def _backpack(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((112, 110, 250, 290), 40, fill=fill, outline=dark, width=3)
    pen.rounded_rectangle((132, 200, 230, 270), 14, fill=_mix(fill, dark, 0.35))
    pen.arc((150, 80, 212, 140), 180, 360, fill=dark, width=9)


def _bottle(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((142, 140, 220, 290), 20, fill=fill, outline=dark)
    pen.rectangle((162, 96, 200, 140), fill=dark)


def _headphones(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.arc((90, 90, 272, 290), 180, 360, fill=dark, width=14)
    for x in (76, 238):
        pen.rounded_rectangle((x, 180, x + 48, 270), 18, fill=fill, outline=dark)


def _speaker(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((116, 90, 246, 290), 14, fill=fill, outline=dark, width=3)
    for y, r in ((140, 26), (224, 44)):
        pen.ellipse((_MIDDLE - r, y - r, _MIDDLE + r, y + r), fill=dark)


def _turntable(pen: ImageDraw.ImageDraw, fill: Colour, dark: Colour) -> None:
    pen.rounded_rectangle((60, 150, 304, 286), 12, fill=fill, outline=dark, width=3)
    pen.ellipse((84, 160, 220, 276), fill=(30, 30, 30))
    pen.ellipse((140, 206, 164, 230), fill=fill)
    pen.line((272, 168, 214, 232), fill=dark, width=7)


_SHAPES = dict(
    zip(
        words.KINDS,
        (
            _kettle,
            _pan,
            _knife,
            _lamp,
            _chair,
            _notebook,
            _tent,
            _backpack,
            _bottle,
            _headphones,
            _speaker,
            _turntable,
        ),
        strict=True,
    )
)
