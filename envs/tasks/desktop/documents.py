# SPDX-License-Identifier: Apache-2.0
"""Makes the documents of the desktop tasks, and what they should look like when a task is done.

Run by the evaluation environment's Python: `python documents.py FOLDER` writes FOLDER/TASK/NAME. The same input
always gives the same content.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
from PIL import Image, ImageDraw

Rows = list[list[Any]]

CITIES = ["Aachen", "Bergen", "Cadiz", "Dover", "Espoo", "Faro", "Ghent", "Haarlem", "Izmir", "Jena", "Kiruna", "Lund"]
ITEMS = ["anvil", "basket", "candle", "drum", "easel", "flute", "globe", "hammer", "inkwell", "jug", "kettle", "lamp"]
PEOPLE = ["Ada", "Boris", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jun", "Kofi", "Lea"]


def sheet(path: Path, rows: Rows) -> None:
    """A workbook of one sheet."""
    book = openpyxl.Workbook()
    page = book.active
    page.title = "Data"
    for row in rows:
        page.append(row)
    book.save(path)


def pair(folder: Path, before: Rows, after: Rows) -> None:
    """A table as the task gives it, and as it should be."""
    sheet(folder / "table.xlsx", before)
    sheet(folder / "expected.xlsx", after)


def table(name: str, count: int, *columns: tuple[str, int, int], labels: Sequence[str] = CITIES) -> Rows:
    """A heading and rows of numbers drawn between bounds; the first column names them."""
    rng = random.Random(name)
    head: Rows = [["Name", *(column[0] for column in columns)]]
    return head + [[labels[n], *(rng.randint(low, high) for _, low, high in columns)] for n in range(count)]


def calc_total(folder: Path) -> None:
    rows = table("total", 10, ("Visitors", 100, 900))
    pair(folder, rows, [*rows, ["Total", sum(row[1] for row in rows[1:])]])


def calc_average(folder: Path) -> None:
    rows = [["Name", "Points"]] + [[PEOPLE[n], 10 * (n % 5) + 20] for n in range(10)]
    pair(folder, rows, [*rows, ["Average", sum(row[1] for row in rows[1:]) / 10]])


def calc_maximum(folder: Path) -> None:
    rows = table("maximum", 9, ("Height", 100, 4000))
    pair(folder, rows, [*rows, ["Highest", max(row[1] for row in rows[1:])]])


def calc_count(folder: Path) -> None:
    rows = table("count", 11, ("Stock", 0, 60), labels=ITEMS)
    pair(folder, rows, [*rows, ["Below 20", sum(row[1] < 20 for row in rows[1:])]])


def calc_amount(folder: Path) -> None:
    rows = table("amount", 8, ("Quantity", 1, 30), ("Price", 2, 99), labels=ITEMS)
    pair(folder, rows, [[*rows[0], "Amount"]] + [[*row, row[1] * row[2]] for row in rows[1:]])


def calc_change(folder: Path) -> None:
    rows = table("change", 8, ("2024", 500, 900), ("2025", 500, 900))
    pair(folder, rows, [[*rows[0], "Change"]] + [[*row, row[2] - row[1]] for row in rows[1:]])


def calc_full_name(folder: Path) -> None:
    rows = [["First", "Last"]] + [[PEOPLE[n], CITIES[-n - 1]] for n in range(7)]
    pair(folder, rows, [["First", "Last", "Full"]] + [[*row, f"{row[0]} {row[1]}"] for row in rows[1:]])


def calc_delete_row(folder: Path) -> None:
    rows = table("delete", 9, ("Guests", 1, 80))
    rows[5][0] = "Cancelled"
    pair(folder, rows, rows[:5] + rows[6:])


def calc_insert_title(folder: Path) -> None:
    rows = table("title", 6, ("Score", 1, 100), labels=PEOPLE)
    pair(folder, rows, [["Results"], *rows])


def calc_fill_gap(folder: Path) -> None:
    rows = [["Day", "Kilometres"]] + [[day, 10 * day] for day in range(1, 12)]
    before = [list(row) for row in rows]
    before[7][1] = None
    pair(folder, before, rows)


def calc_correct_cell(folder: Path) -> None:
    rows = table("correct", 10, ("Fee", 5, 50), labels=PEOPLE)
    after = [list(row) for row in rows]
    after[4][1] = 77
    pair(folder, rows, after)


def calc_flag(folder: Path) -> None:
    rows = table("flag", 9, ("Points", 1, 100), labels=PEOPLE)
    pair(folder, rows, [[*rows[0], "Passed"]] + [[*row, "yes" if row[1] >= 50 else "no"] for row in rows[1:]])


def calc_squares(folder: Path) -> None:
    pair(folder, [["n", "square"]], [["n", "square"]] + [[n, n * n] for n in range(1, 11)])


def text(path: Path, paragraphs: Sequence[str]) -> None:
    """A document of plain paragraphs."""
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    document.save(path)


def letter(folder: Path, before: Sequence[str], after: Sequence[str]) -> None:
    """A text as the task gives it, and as it should be."""
    text(folder / "letter.docx", before)
    text(folder / "expected.docx", after)


LETTER = [
    "Minutes of the meeting",
    "The chair opened the meeting at nine.",
    "The budget was discussed at length and sent back for revision.",
    "The next meeting takes place in the small hall.",
]


def writer_sign(folder: Path) -> None:
    letter(folder, LETTER, [*LETTER, "Signed: the secretary"])


def writer_replace(folder: Path) -> None:
    letter(folder, LETTER, [paragraph.replace("meeting", "session") for paragraph in LETTER])


def writer_first_line(folder: Path) -> None:
    letter(folder, LETTER, ["Draft", *LETTER])


def writer_drop_title(folder: Path) -> None:
    letter(folder, LETTER, LETTER[1:])


def writer_upper_title(folder: Path) -> None:
    letter(folder, LETTER, [LETTER[0].upper(), *LETTER[1:]])


def writer_empty(folder: Path) -> None:
    letter(folder, LETTER, ["To be written anew"])


def slides(folder: Path) -> None:
    """Two slides with titles."""
    show = pptx.Presentation()
    for title in ("Plans for spring", "Costs"):
        show.slides.add_slide(show.slide_layouts[5]).shapes.title.text = title
    show.save(folder / "talk.pptx")


def plain(folder: Path, before: str, after: str) -> None:
    """A text file as the task gives it, and as it should be."""
    (folder / "notes.txt").write_text(before)
    (folder / "expected.txt").write_text(after)


NOTES = "milk\nbread\napples\nsoap\n"


def gedit_add(folder: Path) -> None:
    plain(folder, NOTES, NOTES + "candles\n")


def gedit_remove(folder: Path) -> None:
    plain(folder, NOTES, NOTES.replace("bread\n", ""))


def gedit_replace(folder: Path) -> None:
    plain(folder, NOTES, NOTES.replace("soap", "shampoo"))


def gedit_new_first(folder: Path) -> None:
    plain(folder, NOTES, "Shopping list\n" + NOTES)


def logs(folder: Path) -> None:
    """A log with errors in it."""
    rng = random.Random("logs")
    kinds = ["INFO", "INFO", "WARNING", "ERROR"]
    lines = [f"{n:04d} {rng.choice(kinds)} {rng.choice(ITEMS)} {rng.choice(CITIES)}" for n in range(300)]
    (folder / "server.log").write_text("\n".join(lines) + "\n")


def picture(folder: Path) -> None:
    """A picture of coloured discs."""
    rng = random.Random("picture")
    image = Image.new("RGB", (640, 480), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, r = rng.randrange(640), rng.randrange(480), rng.randrange(10, 60)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(rng.randrange(256) for _ in range(3)))
    image.save(folder / "discs.png")


def page(folder: Path) -> None:
    """Pages that link to each other."""
    for name, other in (("index", "prices"), ("prices", "contact"), ("contact", "index")):
        body = f"<h1>{name.title()}</h1><p><a href='{other}.html'>{other.title()}</a></p>"
        (folder / f"{name}.html").write_text(f"<!doctype html><title>{name.title()}</title>{body}\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    name.replace("_", "-"): make
    for name, make in list(globals().items())
    if name.split("_")[0] in ("calc", "writer", "gedit") and callable(make)
}
MAKERS |= dict.fromkeys(("impress-new-slide", "impress-title", "impress-drop-slide"), slides)
MAKERS |= dict.fromkeys(("files-errors", "files-last-lines", "files-archive", "files-count"), logs)
MAKERS |= dict.fromkeys(("gimp-scale", "gimp-flip"), picture)
MAKERS |= dict.fromkeys(("chrome-follow", "chrome-two-links"), page)


def main() -> None:
    """Writes the documents of all tasks."""
    root = Path(sys.argv[1])
    for name, make in MAKERS.items():
        folder = root / name
        folder.mkdir(parents=True)
        make(folder)


if __name__ == "__main__":
    main()
