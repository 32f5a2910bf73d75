# SPDX-License-Identifier: Apache-2.0
"""What the browser asked of sites, as HAR entries, a line each, in a file that is forked with the rest.

For judges that go by what was sent. Pictures, styles, scripts and the like are left out, and so are bodies of answers
other than JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import Error as PlaywrightError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Request, Response

__all__ = ["NetworkLog"]

log = logging.getLogger(__name__)

_LEFT_OUT = frozenset({"image", "media", "font", "stylesheet", "script", "texttrack", "manifest"})
_LARGEST_BODY_BYTES = 256 << 10


class NetworkLog:
    """Writes down each request of a context once it is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: set[asyncio.Task[None]] = set()

    def attach(self, context: BrowserContext) -> None:
        """Begins with a context's next request."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        context.on("requestfinished", self._finished)

    async def drain(self) -> None:
        """Returns when all that was answered is in the file."""
        while self._open:
            await asyncio.wait(self._open)

    def _finished(self, request: Request) -> None:
        if request.resource_type in _LEFT_OUT or not request.url.startswith("http"):
            return
        task = asyncio.ensure_future(self._write(request))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _write(self, request: Request) -> None:
        try:
            response = await request.response()
            if response is None:
                return
            entry = {"startedDateTime": datetime.now(UTC).isoformat(), "time": 0}
            entry |= {"request": await _request(request), "response": await _response(response)}
        except PlaywrightError as error:
            # The page went away with its request.
            log.info("request of %s not written down: %s", request.url, error.message.splitlines()[0])
            return
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


async def _request(request: Request) -> dict[str, Any]:
    headers = await request.all_headers()
    query = parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
    entry: dict[str, Any] = {
        "method": request.method,
        "url": request.url,
        "httpVersion": "HTTP/1.1",
        "headers": _pairs(headers.items()),
        "queryString": _pairs(query),
        "cookies": [],
        "headersSize": -1,
        "bodySize": -1,
    }
    body = request.post_data_buffer
    if body:
        text = body[:_LARGEST_BODY_BYTES].decode(errors="replace")
        entry["postData"] = {"mimeType": headers.get("content-type", ""), "text": text}
    return entry


async def _response(response: Response) -> dict[str, Any]:
    headers = await response.headers_array()
    kind = next((h["value"] for h in headers if h["name"].lower() == "content-type"), "")
    content: dict[str, Any] = {"mimeType": kind, "size": -1}
    if "json" in kind and not 300 <= response.status < 400:
        content["text"] = (await response.body())[:_LARGEST_BODY_BYTES].decode(errors="replace")
    return {
        "status": response.status,
        "statusText": response.status_text,
        "httpVersion": "HTTP/1.1",
        "headers": [{"name": h["name"], "value": h["value"]} for h in headers],
        "cookies": _cookies([h["value"] for h in headers if h["name"].lower() == "set-cookie"]),
        "content": content,
        "redirectURL": next((h["value"] for h in headers if h["name"].lower() == "location"), ""),
        "headersSize": -1,
        "bodySize": -1,
    }


def _pairs(items: Any) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in items]


def _cookies(lines: list[str]) -> list[dict[str, str]]:
    found = []
    for line in lines:
        try:
            cookies = SimpleCookie(line)
        except CookieError:
            log.info("cookie not understood: %r", line)
            continue
        found += [{"name": name, "value": morsel.value} for name, morsel in cookies.items()]
    return found
