# SPDX-License-Identifier: Apache-2.0
"""Daemons of an image: started in order, waited for, and named with their last words when they do not come up."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from bunshin_gym.toolserver import daemons
from bunshin_gym.toolserver.daemons import Daemon, Daemons, read_daemons

LISTEN = """
import os, socket, sys
assert all(os.path.exists(path) for path in sys.argv[2:]), "too early"
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("serving", os.environ["WORD"], os.environ.get("BUNSHIN_SURFACE"), flush=True)
while True:
    server.accept()[0].close()
"""


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "_LOGS", tmp_path)
    monkeypatch.setenv("BUNSHIN_SURFACE", "browser")


def listener(folder: Path, name: str, *after: str) -> Daemon:
    sockets = [str(folder / f"{one}.sock") for one in (name, *after)]
    env = {"WORD": name}
    return Daemon(name=name, argv=[sys.executable, "-c", LISTEN, *sockets], env=env, ready=f"unix:{sockets[0]}")


def run(listed: list[Daemon]) -> list[int]:
    """Starts them, and ends them again; their process ids."""

    async def main() -> list[int]:
        started = Daemons(listed)
        try:
            await started.start()
        finally:
            for process in started._processes.values():
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            await asyncio.gather(*started._watchers)
        return [process.pid for process in started._processes.values()]

    return asyncio.run(main())


def test_each_starts_once_the_one_before_serves(tmp_path: Path) -> None:
    assert len(run([listener(tmp_path, "first"), listener(tmp_path, "second", "first")])) == 2
    # What is meant for the tool server is not for them.
    assert (tmp_path / "first.log").read_text() == "serving first None\n"


def test_one_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    broken = Daemon(name="site", argv=["/bin/sh", "-c", "echo no such table; exit 3"], ready="tcp:9")
    with pytest.raises(RuntimeError, match=re.escape("site ended with status 3: no such table")):
        run([listener(tmp_path, "first"), broken])


def test_one_that_never_serves_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "_READY_TIMEOUT_S", 0.2)
    with pytest.raises(RuntimeError, match=r"idle does not serve unix:/.*none"):
        run([Daemon(name="idle", argv=["/bin/sleep", "60"], ready=f"unix:{tmp_path}/none")])


def test_the_list_is_the_images(tmp_path: Path) -> None:
    assert read_daemons(tmp_path / "none.json") == []
    file = tmp_path / "daemons.json"
    file.write_text(json.dumps([{"name": "site", "argv": ["/x"], "ready": "", "root": "/srv/sites/a", "user": "5:6"}]))
    assert read_daemons(file) == [Daemon(name="site", argv=["/x"], root="/srv/sites/a", user="5:6")]
