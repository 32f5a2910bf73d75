# SPDX-License-Identifier: Apache-2.0
"""Runs inside a workspace: a small site with a cart for each visitor, in a database and in memory.

site.py PORT DATABASE    serves until killed
"""

from __future__ import annotations

import secrets
import sqlite3
import sys

from aiohttp import web

COOKIE = "visitor"


class Site:
    def __init__(self, database: str) -> None:
        self._database = sqlite3.connect(database, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("CREATE TABLE cart (visitor TEXT, item TEXT)")
        self._served = 0

    async def show(self, request: web.Request) -> web.Response:
        self._served += 1
        visitor = request.cookies.get(COOKIE) or secrets.token_hex(8)
        if item := request.query.get("add"):
            self._database.execute("INSERT INTO cart VALUES (?, ?)", (visitor, item))
        rows = self._database.execute("SELECT item FROM cart WHERE visitor = ? ORDER BY rowid", (visitor,))
        items = " ".join(item for (item,) in rows)
        text = f"<!doctype html><title>Shop</title><p id=cart>{items}</p><p id=served>{self._served}</p>"
        response = web.Response(text=text, content_type="text/html")
        response.set_cookie(COOKIE, visitor, max_age=86400)
        return response


def main() -> None:
    application = web.Application()
    application.add_routes([web.get("/", Site(sys.argv[2]).show)])
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
