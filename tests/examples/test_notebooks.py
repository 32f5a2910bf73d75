# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs from top to bottom, and shows pictures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.examples import EXAMPLES

from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.workspace import core

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.filterwarnings("ignore:::(?!bunshin_gym)")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    before = {record.id for record in [*list_workspaces(), *list_snapshots()]}
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        kernel = client.km.provisioner.pid  # type: ignore[union-attr]
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert shown.count("data:image/png;base64") >= 2
    core().gc()  # Jupyter kills a kernel that takes long to end; whoever comes next reaps what that leaves
    left = [record for record in [*list_workspaces(), *list_snapshots()] if record.id not in before]
    assert [record.id for record in left if record.owner_pid == kernel] == []
    assert kernel != os.getpid()


def test_there_are_notebooks_and_they_are_kept_without_output() -> None:
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
