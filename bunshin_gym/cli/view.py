# SPDX-License-Identifier: Apache-2.0
"""bunshin view: the screens of all workspaces, in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Annotated

import typer

from bunshin_gym.cli.output import console
from bunshin_gym.cli.privilege import need_root
from bunshin_gym.errors import UsageError
from bunshin_gym.paths import home_path

__all__ = ["view"]


def view(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Show the screens of all workspaces on a local web page, until Ctrl-C."""
    need_root("view")
    try:
        from bunshin_gym.viewer.app import make_app, new_token, serve
    except ImportError as error:
        raise UsageError(f"{error}: pip install 'bunshin-gym[view]'") from error
    from bunshin_gym.accounting import account_ids

    def memory(ids: list[str]) -> dict[str, int]:
        return {name: member.machine_bytes for name, member in account_ids(ids).members.items()}

    token = new_token()
    with socket.create_server(("127.0.0.1", port)) as sock, contextlib.suppress(KeyboardInterrupt):
        app = make_app(home_path(), token, memory)
        asyncio.run(
            serve(app, sock, lambda taken: console.print(f"http://127.0.0.1:{taken}/?token={token}", soft_wrap=True))
        )
