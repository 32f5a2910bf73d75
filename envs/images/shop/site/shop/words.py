# SPDX-License-Identifier: Apache-2.0
"""The vocabulary that the catalogue is made of."""

from __future__ import annotations

DEPARTMENTS = {
    "Kitchen": ("Kettles", "Pans", "Knives"),
    "Study": ("Desk Lamps", "Chairs", "Notebooks"),
    "Outdoors": ("Tents", "Backpacks", "Bottles"),
    "Sound": ("Headphones", "Speakers", "Turntables"),
}

# Leaf category: what one is called, lowest and highest price in whole dollars, grams, and its materials.
KINDS = {
    "Kettles": ("Kettle", 28, 140, (700, 1600), ("steel", "enamel", "glass")),
    "Pans": ("Pan", 18, 160, (600, 2800), ("cast iron", "steel", "aluminium")),
    "Knives": ("Knife", 12, 210, (90, 320), ("carbon steel", "stainless steel", "ceramic")),
    "Desk Lamps": ("Desk Lamp", 22, 180, (500, 2200), ("brass", "steel", "oak")),
    "Chairs": ("Chair", 65, 520, (4200, 14000), ("beech", "oak", "mesh")),
    "Notebooks": ("Notebook", 4, 36, (120, 520), ("recycled paper", "stone paper", "cotton paper")),
    "Tents": ("Tent", 90, 640, (1100, 6200), ("nylon", "polyester", "cotton")),
    "Backpacks": ("Backpack", 35, 260, (450, 2100), ("canvas", "nylon", "waxed cotton")),
    "Bottles": ("Bottle", 9, 58, (140, 640), ("steel", "glass", "titanium")),
    "Headphones": ("Headphones", 25, 420, (120, 380), ("leather", "fabric", "plastic")),
    "Speakers": ("Speaker", 30, 480, (300, 7200), ("walnut", "plastic", "aluminium")),
    "Turntables": ("Turntable", 95, 780, (2800, 9400), ("walnut", "glass", "acrylic")),
}

BRANDS = ("Norvik", "Halden", "Castell", "Umbra Works", "Pinewell", "Okaru", "Brightmoor", "Tessella")
SERIES = (
    "Alba",
    "Borea",
    "Cobalt",
    "Drift",
    "Ember",
    "Fjell",
    "Grove",
    "Haven",
    "Indra",
    "Jura",
    "Kestrel",
    "Lumen",
    "Mistral",
    "Nimbus",
    "Orrin",
    "Pallas",
    "Quarry",
    "Rowan",
)
COLOURS = {
    "Sand": (214, 190, 150),
    "Moss": (104, 124, 78),
    "Slate": (92, 104, 118),
    "Rust": (168, 84, 52),
    "Ivory": (236, 228, 208),
    "Navy": (42, 58, 98),
    "Plum": (110, 62, 98),
    "Charcoal": (58, 58, 62),
}

OPENINGS = (
    "The {title} is made for people who use it every day.",
    "Quiet in looks and honest in use: that is the {title}.",
    "Our workshop took two years over the {title}, and it shows.",
    "A small thing done well, the {title} earns its place at once.",
)
MIDDLES = (
    "Its {material} body keeps its shape and is easy to keep clean.",
    "The parts that wear are {material}, and each of them can be replaced.",
    "We chose {material} since it grows better with age.",
)
ENDINGS = (
    "It weighs {weight} g and comes with a warranty of {warranty} years.",
    "At {weight} g it is easy to carry; {brand} stands behind it for {warranty} years.",
)

REVIEW_TITLES = {
    5: ("Could not be happier", "Exactly what I was after", "Worth every cent"),
    4: ("Very good, one small flaw", "Good value", "Does the job well"),
    3: ("Decent, not more", "Mixed feelings", "It is all right"),
    2: ("Expected better", "Not for me", "Had to send one back"),
    1: ("Broke within a week", "Do not buy this", "A disappointment"),
}
REVIEW_BODIES = {
    5: (
        "I use it daily and it still looks new. {part} is a joy.",
        "Bought a second one for my sister. {part} is superb.",
    ),
    4: ("Solid and pretty, though {part} could be better.", "Happy with it; only {part} took some getting used to."),
    3: ("It works. {part} is nothing special.", "For the price I hoped for more, and {part} feels thin."),
    2: ("{part} came scratched, and the colour is off.", "After a month {part} is loose already."),
    1: ("{part} fell apart. The second one was no better.", "It arrived damaged, and {part} never worked."),
}
PARTS = ("the handle", "the finish", "the packaging", "the lid", "the stitching", "the base", "the weight")

# First name, last name, street, town, postcode.
PEOPLE = (
    ("Alma", "Ferreira", "12 Quay Street", "Port Ellery", "04110"),
    ("Bruno", "Lindqvist", "7 Mill Lane", "Ashford Falls", "05401"),
    ("Chiara", "Okafor", "89 Orchard Road", "Greenhaven", "06103"),
    ("Dmitri", "Salas", "3 Station Square", "Westmarch", "02903"),
    ("Edda", "Nakamura", "45 Harbour View", "Port Ellery", "04111"),
    ("Farid", "Jensen", "210 Long Acre", "Millbrook", "03301"),
    ("Greta", "Moreau", "18 Chapel Hill", "Ashford Falls", "05402"),
    ("Hugo", "Adeyemi", "6 Beacon Close", "Westmarch", "02904"),
)
