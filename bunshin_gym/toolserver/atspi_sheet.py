# SPDX-License-Identifier: Apache-2.0
"""Reads the cells in view of a large table: a spreadsheet has millions of them."""

from __future__ import annotations

import asyncio

from .atspi_model import FOCUSED, Accessible, Bus, NoAnswerError, Ref, bits, to_ref

__all__ = ["CELLS", "TEXT_CHARACTERS", "Sheet", "address"]

CELLS = 3000
TEXT_CHARACTERS = 20_000
_SELECTED = 200


class Sheet:
    """The cells of a large table that are in view.

    Of each cell its text is asked for, and its states if it has any text or is selected. Empty cells share the states
    of the first of them, and a cell's place follows from those of its row and its column.
    """

    def __init__(self, bus: Bus, table: Accessible) -> None:
        self._bus = bus
        self._table = table

    async def read(self) -> list[Accessible]:
        """Cells from the first to the last one in view, row by row."""
        try:
            x, y, width, height = (await self._bus.call(self._table.ref, "Component", "GetExtents", "u", 0))[0]
            top, left = await self._cell_at(x + 2, y + 2)
            bottom, right = await self._cell_at(x + width - 3, y + height - 3)
        except NoAnswerError:
            return []
        rows, columns = range(top, bottom + 1), range(left, right + 1)
        places = [(row, column) for row in rows for column in columns][:CELLS]
        found = await asyncio.gather(*(self._cell(*place) for place in places))
        cells = {place: cell for place, cell in zip(places, found, strict=True) if cell is not None}
        await asyncio.gather(self._place(cells), self._name(cells), self._states(cells))
        return list(cells.values())

    async def _cell_at(self, x: int, y: int) -> tuple[int, int]:
        ref = to_ref((await self._bus.call(self._table.ref, "Component", "GetAccessibleAtPoint", "iiu", x, y, 0))[0])
        (index,) = await self._bus.call(ref, "Accessible", "GetIndexInParent")
        (row,) = await self._bus.call(self._table.ref, "Table", "GetRowAtIndex", "i", index)
        (column,) = await self._bus.call(self._table.ref, "Table", "GetColumnAtIndex", "i", index)
        return row, column

    async def _cell(self, row: int, column: int) -> Accessible | None:
        try:
            ref = to_ref((await self._bus.call(self._table.ref, "Table", "GetAccessibleAt", "ii", row, column))[0])
            (text,) = await self._bus.call(ref, "Text", "GetText", "ii", 0, -1)
        except NoAnswerError:
            return None
        return Accessible(ref, role="table cell", text=text[:TEXT_CHARACTERS])

    async def _place(self, cells: dict[tuple[int, int], Accessible]) -> None:
        """Extents: asked of the first cell in each row and column, and of those with text, which may be merged."""
        first: dict[tuple[str, int], tuple[int, int]] = {}
        for row, column in cells:
            first.setdefault(("row", row), (row, column))
            first.setdefault(("column", column), (row, column))
        asked = {*first.values(), *(place for place, cell in cells.items() if cell.text)}
        answers = await asyncio.gather(*(self._extents(cells[place]) for place in asked), return_exceptions=True)
        known = {p: a for p, a in zip(asked, answers, strict=True) if not isinstance(a, BaseException)}
        for place, cell in cells.items():
            across, down = known.get(first["row", place[0]]), known.get(first["column", place[1]])
            if place in known:
                cell.extents = known[place]
            elif across is not None and down is not None:
                cell.extents = (down[0], across[1], down[2], across[3])

    async def _extents(self, cell: Accessible) -> tuple[int, int, int, int]:
        x, y, width, height = (await self._bus.call(cell.ref, "Component", "GetExtents", "u", 0))[0]
        return x, y, width, height

    async def _name(self, cells: dict[tuple[int, int], Accessible]) -> None:
        """Names are the cells' addresses in a spreadsheet; another kind of table is asked."""
        place, sample = next(iter(cells.items()))
        first = await self._bus.get(sample.ref, "Accessible", "Name")
        if first == address(*place):
            for spot, cell in cells.items():
                cell.name = address(*spot)
            return
        names = await asyncio.gather(*(self._bus.get(cell.ref, "Accessible", "Name") for cell in cells.values()))
        for cell, name in zip(cells.values(), names, strict=True):
            cell.name = name

    async def _states(self, cells: dict[tuple[int, int], Accessible]) -> None:
        selected = set(await self._selected())
        empty = [cell for cell in cells.values() if not cell.text and cell.ref not in selected]
        asked = [cell for cell in cells.values() if cell.text or cell.ref in selected] + empty[:1]
        answers = await asyncio.gather(
            *(self._bus.call(cell.ref, "Accessible", "GetState") for cell in asked), return_exceptions=True
        )
        for cell, answer in zip(asked, answers, strict=True):
            cell.states = 0 if isinstance(answer, BaseException) else bits(answer[0])
        for cell in empty[1:]:
            cell.states = empty[0].states & ~(1 << FOCUSED)

    async def _selected(self) -> list[Ref]:
        """The selected cells, if they are few: a whole column has a million."""
        if "Selection" not in self._table.interfaces:
            return []
        try:
            count = await self._bus.get(self._table.ref, "Selection", "NSelectedChildren")
            picks = range(min(count, _SELECTED))
            refs = await asyncio.gather(
                *(self._bus.call(self._table.ref, "Selection", "GetSelectedChild", "i", n) for n in picks)
            )
        except NoAnswerError:
            return []
        return [to_ref(ref[0]) for ref in refs]


def address(row: int, column: int) -> str:
    """A cell's name in a spreadsheet: B3."""
    letters = ""
    column += 1
    while column:
        column, digit = divmod(column - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return f"{letters}{row + 1}"
