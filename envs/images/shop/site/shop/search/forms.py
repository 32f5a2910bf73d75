# SPDX-License-Identifier: Apache-2.0
"""Finds products by their words; what was just written to the database is found at once."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Q, QuerySet
from oscar.apps.search import forms
from oscar.core.loading import get_model

_ORDERS = {
    forms.SearchForm.TOP_RATED: (F("rating").desc(nulls_last=True), "id"),
    forms.SearchForm.NEWEST: ("-date_created", "id"),
    forms.SearchForm.PRICE_HIGH_TO_LOW: ("-stockrecords__price", "id"),
    forms.SearchForm.PRICE_LOW_TO_HIGH: ("stockrecords__price", "id"),
    forms.SearchForm.TITLE_A_TO_Z: ("title",),
    forms.SearchForm.TITLE_Z_TO_A: ("-title",),
}


class SearchForm(forms.SearchForm):
    """All words must be in a product's title, description, number or category."""

    everything = False
    """Whether no words at all find all products."""

    def search(self) -> QuerySet[Any]:
        """The products, in the order asked for."""
        found = self.products()
        if not self.is_valid():
            return found.none()
        words = self.cleaned_data.get("q", "").split()
        if not words and not self.everything:
            return found.none()
        for word in words:
            places = Q(title__icontains=word) | Q(description__icontains=word) | Q(upc__iexact=word)
            found = found.filter(places | Q(categories__name__icontains=word))
        return found.order_by(*_ORDERS.get(self.cleaned_data.get("sort_by", ""), ("id",)))

    def products(self) -> QuerySet[Any]:
        """Where to search."""
        return get_model("catalogue", "Product").objects.browsable().base_queryset()


class BrowseCategoryForm(SearchForm):
    """All products, when no words are given."""

    everything = True


class CategoryForm(BrowseCategoryForm):
    """The products of a category and of those below it."""

    def __init__(self, categories: QuerySet[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.categories = categories

    def products(self) -> QuerySet[Any]:
        """Those of the categories."""
        return super().products().filter(categories__in=self.categories)
