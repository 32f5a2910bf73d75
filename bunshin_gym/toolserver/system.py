# SPDX-License-Identifier: Apache-2.0
"""Tools that need no desktop: commands and files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from .registry import Handler

__all__ = ["functions", "read_file", "shell", "write_file"]

_OUTPUT_BYTES = 16 << 20


async def shell(
    argv: list[str], timeout_s: float = 30.0, input: bytes = b"", cwd: str = "/", env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Runs a command to its end.

    Returns:
        exit_code (128 + signal when one ended it), stdout, stderr (bytes, cut at 16 MiB), timed_out.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    timed_out = False
    talk = asyncio.ensure_future(process.communicate(input))
    done, _ = await asyncio.wait({talk}, timeout=timeout_s)
    if not done:
        timed_out = True
        os.killpg(process.pid, 9)
    out, err = await talk
    code = process.returncode
    assert code is not None
    return {
        "exit_code": code if code >= 0 else 128 - code,
        "stdout": out[:_OUTPUT_BYTES],
        "stderr": err[:_OUTPUT_BYTES],
        "timed_out": timed_out,
    }


async def read_file(path: str) -> bytes:
    """The whole content of a file."""
    return await asyncio.to_thread(Path(path).read_bytes)


async def write_file(path: str, data: bytes | str, mode: int = 0o644) -> int:
    """Writes a file as a whole, with the folders above it; returns its length in bytes."""
    content = data.encode() if isinstance(data, str) else data

    def write() -> None:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".{file.name}.bunshin-new")
        scratch.write_bytes(content)
        scratch.chmod(mode)
        scratch.replace(file)

    await asyncio.to_thread(write)
    return len(content)


def functions() -> dict[str, Handler]:
    """What this module adds to the registry."""
    return {"shell": shell, "read_file": read_file, "write_file": write_file}
