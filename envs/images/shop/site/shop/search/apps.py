# SPDX-License-Identifier: Apache-2.0
"""Oscar's search, asked of the database."""

from __future__ import annotations

from oscar.apps.search import apps


class SearchConfig(apps.SearchConfig):
    """Takes the place of Oscar's own app."""

    name = "shop.search"
