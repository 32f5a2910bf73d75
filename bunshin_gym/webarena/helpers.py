# SPDX-License-Identifier: Apache-2.0
"""What task files call by `func:`: a few questions to a site, answered from inside the workspace."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.tasks.base import Page

__all__ = ["call_helper"]

# In the workspace: only there do the sites' names mean anything.
_FETCH: Final = """
import json, sys, urllib.request
method, url, headers, body = json.loads(sys.argv[1])
request = urllib.request.Request(url, method=method, headers=headers, data=body.encode() if body else None)
with urllib.request.urlopen(request, timeout=60) as answer:
    sys.stdout.write(answer.read().decode())
"""

_ROLE: Final = """(name) => {
  const names = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const place = names.findIndex((element) => element.outerText === '@' + name);
  const roles = document.querySelectorAll('td.col-max-role span');
  return place < 0 || !roles[place] ? '' : roles[place].outerText;
}"""


def call_helper(call: str, page: Page, *, url: str, sites: Mapping[str, str], admin: tuple[str, str]) -> str:
    """Answers a call such as `shopping_get_latest_order_url()`.

    Args:
        call: as the file has it, without `func:`.
        page: the workspace.
        url: what `__last_url__` stands for.
        sites: addresses by site.
        admin: account and password of the shop's administrator.

    Raises:
        UsageError: there is no such helper, or its arguments are no plain texts.
        ToolError: the site did not answer.
    """
    name, arguments = _parse(call, url)
    helper = _HELPERS.get(name)
    if helper is None:
        raise UsageError(f"func:{call}: there is no helper {name!r}; there are {', '.join(_HELPERS)}")
    return helper(page, sites, admin, arguments)


def _parse(call: str, url: str) -> tuple[str, list[str]]:
    """Name and text arguments; what is written there is never evaluated."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.keywords:
            raise ValueError("no call")
        texts = [part for part in tree.args if not (isinstance(part, ast.Name) and part.id == "__page__")]
        values = [ast.literal_eval(part) for part in texts]
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"func:{call}: not a call with plain texts: {error}") from error
    return tree.func.id, [str(value).replace("__last_url__", url) for value in values]


def _fetch(page: Page, method: str, url: str, headers: Mapping[str, str], body: str = "") -> Any:
    question = json.dumps([method, url, {"Content-Type": "application/json", **headers}, body])
    return json.loads(page.execute(["/usr/bin/python3", "-c", _FETCH, question]))


def _shop(page: Page, sites: Mapping[str, str], admin: tuple[str, str], path: str) -> Any:
    """Asks the shop's REST interface as its administrator."""
    account, password = admin
    login = json.dumps({"username": account, "password": password})
    token = _fetch(page, "POST", f"{sites['shopping']}/rest/default/V1/integration/admin/token", {}, login)
    return _fetch(page, "GET", f"{sites['shopping']}/rest/V1/{path}", {"Authorization": f"Bearer {token}"})


def _latest_order_url(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> str:
    order = "searchCriteria[sortOrders][0]"
    query = urlencode({f"{order}[field]": "created_at", f"{order}[direction]": "DESC", "searchCriteria[pageSize]": "1"})
    items = _shop(page, sites, admin, f"orders?{query}")["items"]
    if not items:
        raise ToolError("the shop has no orders")
    return f"{sites['shopping']}/sales/order/view/order_id/{int(items[0]['increment_id'])}/"


def _reviews(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> list[Any]:
    found: list[Any] = _shop(page, sites, admin, f"products/{quote(arguments[0], safe='')}/reviews")
    return found


def _review_author(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> str:
    reviews = _reviews(page, sites, admin, arguments)
    return str(reviews[-1]["nickname"]) if reviews else ""


def _review_rating(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> str:
    reviews = _reviews(page, sites, admin, arguments)
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


def _post_url(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> str:
    """The address of a post, from that of anything below it."""
    parts = urlsplit(arguments[0])
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return arguments[0]
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


def _member_role(page: Page, sites: Mapping[str, str], admin: tuple[str, str], arguments: list[str]) -> str:
    return str(page.evaluate(_ROLE, arguments[0]))


_HELPERS: Final[Mapping[str, Callable[[Page, Mapping[str, str], tuple[str, str], list[str]], str]]] = {
    "shopping_get_latest_order_url": _latest_order_url,
    "shopping_get_sku_latest_review_author": _review_author,
    "shopping_get_sku_latest_review_rating": _review_rating,
    "reddit_get_post_url": _post_url,
    # Spelt as the task files do.
    "gitlab_get_project_memeber_role": _member_role,
}
