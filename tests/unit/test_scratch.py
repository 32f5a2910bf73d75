# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bunshin_gym.scratch import ScratchFolder, reap_scratch

HOLD = """
import sys
from bunshin_gym.scratch import ScratchFolder
folder = ScratchFolder("held")
(folder.path / "file").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_it_goes_with_its_block() -> None:
    with ScratchFolder("test") as folder:
        (folder.path / "file").write_text("x")
        assert reap_scratch() == 0, "it is in use"
    assert not folder.path.exists()
    folder.close()


def test_what_a_killed_process_had_is_reaped_and_nothing_else(tmp_path: Path) -> None:
    with (
        ScratchFolder("mine") as mine,
        subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner,
    ):
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        (tmp_path / "bunshin-scratch-a-file").write_text("not a folder")
        assert reap_scratch() == 0
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert theirs.exists()
        assert reap_scratch() == 1
        assert not theirs.exists()
        assert mine.path.exists()


def test_it_goes_with_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", HOLD], input="", capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()
