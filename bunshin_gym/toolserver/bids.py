# SPDX-License-Identifier: Apache-2.0
"""Element ids: a `bid` attribute on each element, the same for as long as the element lives.

A page's own document numbers its elements 0, 1, 2 …; a frame inside it puts letters of its own before
the number (a0, a1 …; the second frame b0 …), so that an id says which frame to look in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

__all__ = ["MARK_SCRIPT", "FrameLetters", "letters_of", "split_bid"]

# Numbers what has no number yet. Open shadow roots are entered. An id met twice (a cloned element) is
# given anew to the later one. Returns the title, and the id of the focused element if it is not the page
# itself.
MARK_SCRIPT = """
(letters) => {
  const key = Symbol.for('bunshin.next-bid');
  if (!(key in document))
    Object.defineProperty(document, key, {value: 0, writable: true});
  const seen = new Set();
  const visit = (root) => {
    for (const element of root.querySelectorAll('*')) {
      let bid = element.getAttribute('bid');
      if (bid === null || seen.has(bid) || !bid.startsWith(letters)) {
        bid = letters + document[key]++;
        element.setAttribute('bid', bid);
      }
      seen.add(bid);
      if (element.shadowRoot)
        visit(element.shadowRoot);
    }
  };
  visit(document);
  let active = document.activeElement;
  while (active && active.shadowRoot && active.shadowRoot.activeElement)
    active = active.shadowRoot.activeElement;
  if (!active || active === document.body || active === document.documentElement)
    active = null;
  return [document.title, active && active.getAttribute('bid') || ''];
}
"""

_BID = re.compile(r"([a-z]*)([0-9]+)")


def letters_of(number: int) -> str:
    """Letters for the n-th frame: a … z, aa, ab …"""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters


def split_bid(bid: str) -> tuple[str, int]:
    """(letters of the frame, number in it).

    Raises:
        ValueError: that is not an element id.
    """
    match = _BID.fullmatch(bid)
    if match is None:
        raise ValueError(f"{bid!r} is not an element id such as '12' or 'a3'")
    return match[1], int(match[2])


class FrameLetters:
    """Which letters the frames of a page have; a frame keeps its own for life."""

    def __init__(self) -> None:
        self._given: WeakKeyDictionary[Frame, str] = WeakKeyDictionary()
        self._next = 0

    def of(self, frame: Frame) -> str:
        """The letters of a frame; none for the page's own."""
        if frame.parent_frame is None:
            return ""
        if frame not in self._given:
            self._given[frame] = letters_of(self._next)
            self._next += 1
        return self._given[frame]

    def find(self, page: Page, letters: str) -> Frame | None:
        """The live frame with those letters."""
        return next((frame for frame in page.frames if self.of(frame) == letters), None)
