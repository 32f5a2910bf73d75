# SPDX-License-Identifier: Apache-2.0
"""Pictures are drawn small: each is its own thumbnail, and nothing is made at the first look at a page."""

from __future__ import annotations

from typing import Any

from oscar.core.thumbnails import AbstractThumbnailer


class AsIs(AbstractThumbnailer):
    """Gives a picture back as it is."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Any:
        """The picture, whatever size is asked for."""
        return source

    def delete_thumbnails(self, source: Any) -> None:
        """Nothing: there are none beside the pictures."""
