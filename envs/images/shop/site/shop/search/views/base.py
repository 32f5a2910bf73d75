# SPDX-License-Identifier: Apache-2.0
"""Pages that list products; Oscar's own classes stand on this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.views.generic import ListView


@dataclass(frozen=True, slots=True)
class Found:
    """A product as Oscar's templates want a search result."""

    object: Any


class BaseSearchView(ListView):
    """Lists what its form finds, a page at a time."""

    form_class: Any = None
    paginate_by = settings.OSCAR_PRODUCTS_PER_PAGE

    def get_form_kwargs(self) -> dict[str, Any]:
        """What the form is made of."""
        return {"data": self.request.GET}

    def get_queryset(self) -> QuerySet[Any]:
        """What the form finds."""
        self.form = self.form_class(**self.get_form_kwargs())
        return self.form.search()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """For Oscar's templates."""
        context = super().get_context_data(**kwargs)
        page = context["page_obj"]
        page.object_list = [Found(product) for product in page.object_list]
        context[self.context_object_name] = page.object_list
        query = self.form.cleaned_data.get("q", "")
        return {**context, "form": self.form, "query": query, self.page_kwarg: page, "selected_facets": []}
