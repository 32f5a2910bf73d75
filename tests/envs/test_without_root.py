# SPDX-License-Identifier: Apache-2.0
"""Without root everything that needs it says so in one line, and does nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65534

# Nobody, but able to read: this checkout and this Python may be where only root can.
DROP = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
DROP += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
COMMAND = "import sys\nfrom bunshin_gym.cli import main\nsys.argv[0] = 'bunshin'\nmain()\n"


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    argv = [*DROP, sys.executable, "-c", script, *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.parametrize(
    "words",
    [
        "gc",
        "ps",
        "plot memory.png",
        "fork minimal",
        "trace minimal",
        "demo --output demo.png",
        "run miniwob.click-test",
        "image build minimal",
        "image rm minimal",
        "image gc",
        "image import /etc",
    ],
)
def test_a_command_says_in_one_line_that_it_needs_root(words: str) -> None:
    done = run(COMMAND, *words.split())
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("bunshin: `bunshin ")
    assert "as root" in line
    assert "sudo" in line


def test_what_needs_no_root_works_without() -> None:
    assert "bunshin/MiniWoB-ClickTest-v0" in run(COMMAND, "tasks", "list", "ClickTest-v0").stdout
    done = run(COMMAND, "doctor")
    assert done.returncode == 1
    assert "fail root" in done.stdout
    assert "setcap" not in done.stdout


def test_a_workspace_says_that_it_needs_root() -> None:
    start = "from bunshin_gym.workspace import Workspace\nWorkspace.start('/', argv=['true'])\n"
    assert "PrivilegeError: a workspace needs root" in run(start).stderr
    collect = "from bunshin_gym.workspace import core\ncore().gc()\n"
    assert "root is needed" in run(collect).stderr


def test_a_registry_that_cannot_be_read_is_not_taken_for_an_empty_one() -> None:
    drop = f"import os\nos.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n"
    script = f"from bunshin_gym.workspace import list_workspaces\n{drop}list_workspaces()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert "PrivilegeError: cannot read" in done.stderr


@pytest.fixture
def recipe() -> Iterator[Path]:
    """CRIU's build recipe where anybody can read it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy.chmod(0o755)
        shutil.copytree(REPOSITORY / "third_party", copy / "third_party")
        shutil.copytree(REPOSITORY / "kmod/uapi", copy / "kmod/uapi")
        yield copy / "third_party/criu/build.sh"


@pytest.mark.parametrize("home", ["there", "not there"])
def test_the_build_of_criu_says_what_to_do(recipe: Path, home: str) -> None:
    state = recipe.parents[2] / "state"
    if home == "there":
        (state / "cache/criu").mkdir(parents=True)
        (state / "criu").mkdir()
    env = {**os.environ, "BUNSHIN_HOME": str(state)}
    done = subprocess.run(
        ["bash", str(recipe)], capture_output=True, text=True, check=False, env=env, user=NOBODY, group=NOBODY, cwd="/"
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"criu: error: cannot write to {state}: run this as root, or set BUNSHIN_HOME to a directory of yours\n"
    )
