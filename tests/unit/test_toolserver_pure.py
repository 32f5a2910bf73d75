# SPDX-License-Identifier: Apache-2.0
"""The tool server's parts that need no desktop."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunshin_gym.toolserver import quiet, system
from bunshin_gym.toolserver.axtree import ElementFacts, FrameTree, facts_of_snapshot, render
from bunshin_gym.toolserver.bids import letters_of, split_bid
from bunshin_gym.toolserver.desktop import parse_screen_size
from bunshin_gym.toolserver.registry import Registry, ToolRefusedError


def ax(number: int, role: str, name: str = "", *, parent: int = 0, **more: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"nodeId": str(number), "role": {"value": role}, "name": {"value": name}}
    if parent:
        node["parentId"] = str(parent)
    return {**node, "backendDOMNodeId": 100 + number, **more}


def tree(*nodes: dict[str, Any]) -> list[dict[str, Any]]:
    for node in nodes:
        node["childIds"] = [other["nodeId"] for other in nodes if other.get("parentId") == node["nodeId"]]
    return list(nodes)


def fact(bid: str, *, clickable: bool = False, visible: bool = True) -> ElementFacts:
    return ElementFacts(bid=bid, clickable=clickable, box=(0, 0, 10, 10) if visible else None)


def test_a_page_is_rendered_with_ids_states_and_depth() -> None:
    nodes = tree(
        ax(1, "RootWebArea", "Shop"),
        ax(2, "button", "Buy", parent=1, properties=[{"name": "focused", "value": {"value": True}}]),
        ax(3, "StaticText", "Buy", parent=2),
        ax(4, "checkbox", "Gift", parent=1, properties=[{"name": "checked", "value": {"value": "false"}}]),
        ax(5, "textbox", "Name", parent=1, value={"value": "Ann"}),
        ax(6, "generic", parent=1),
        ax(7, "StaticText", "Hello", parent=6),
    )
    facts = {102: fact("7", clickable=True), 104: fact("8"), 105: fact("9"), 106: fact("10")}
    text, cut = render([FrameTree(nodes=nodes, owner=None)], facts, max_nodes=100)
    assert text.splitlines() == [
        "RootWebArea 'Shop'",
        "\t[7] button 'Buy', clickable, focused",
        "\t[8] checkbox 'Gift', checked=false",
        "\t[9] textbox 'Name', value='Ann'",
        "\tStaticText 'Hello'",
    ]
    assert not cut


def test_ignored_and_hidden_nodes() -> None:
    nodes = tree(
        ax(1, "RootWebArea", "P"),
        ax(2, "generic", parent=1, ignored=True),
        ax(3, "link", "inside", parent=2),
        ax(4, "link", "gone", parent=1),
        ax(5, "generic", "", parent=1),
    )
    facts = {102: fact("1"), 103: fact("2"), 104: fact("3", visible=False), 105: fact("4", clickable=True)}
    text, _ = render([FrameTree(nodes=nodes, owner=None)], facts, max_nodes=100)
    assert text.splitlines() == [
        "RootWebArea 'P'",
        "\t[2] link 'inside'",
        "\t[3] link 'gone', hidden",
        "\t[4] generic '', clickable",
    ]


def test_frames_stand_inside_the_element_that_holds_them() -> None:
    outer = tree(ax(1, "RootWebArea", "out"), ax(2, "Iframe", parent=1), ax(3, "button", "after", parent=1))
    inner = tree(ax(1, "RootWebArea", "in"), ax(2, "button", "deep", parent=1))
    for node in inner:
        node["backendDOMNodeId"] += 100
    facts = {102: fact("4"), 103: fact("5"), 202: fact("a0")}
    frames = [FrameTree(nodes=outer, owner=None), FrameTree(nodes=inner, owner=102)]
    text, _ = render(frames, facts, max_nodes=100)
    assert text.splitlines() == [
        "RootWebArea 'out'",
        "\t[4] Iframe ''",
        "\t\tRootWebArea 'in'",
        "\t\t\t[a0] button 'deep'",
        "\t[5] button 'after'",
    ]


def test_a_huge_page_is_cut_and_a_deep_one_is_no_problem() -> None:
    wide = tree(ax(1, "RootWebArea"), *(ax(n, "link", f"l{n}", parent=1) for n in range(2, 500)))
    text, cut = render([FrameTree(nodes=wide, owner=None)], {}, max_nodes=50)
    assert cut
    assert len(text.splitlines()) == 50
    deep = [ax(1, "RootWebArea"), *(ax(n, "group", f"g{n}", parent=n - 1) for n in range(2, 3000))]
    for node, child in itertools.pairwise(deep):
        node["childIds"] = [child["nodeId"]]
    text, cut = render([FrameTree(nodes=deep, owner=None)], {}, max_nodes=5000)
    assert not cut
    assert len(text.splitlines()) == 2999


def test_the_layout_snapshot_is_read() -> None:
    strings = ["bid", "12", "class", "bid-like", "F0", "F1", "a0"]
    snapshot = {
        "strings": strings,
        "documents": [
            {
                "frameId": 4,
                "nodes": {
                    "backendNodeId": [10, 11, 12],
                    "attributes": [[], [2, 3, 0, 1], [2, 0]],
                    "isClickable": {"index": [1]},
                    "contentDocumentIndex": {"index": [2], "value": [1]},
                },
                "layout": {"nodeIndex": [1], "bounds": [[1, 2, 30, 40]]},
            },
            {
                "frameId": 5,
                "nodes": {"backendNodeId": [20], "attributes": [[0, 6]]},
                "layout": {"nodeIndex": [0], "bounds": [[0, 0, 0, 40]]},
            },
        ],
    }
    facts, frames = facts_of_snapshot(snapshot)
    assert facts == {
        11: ElementFacts(bid="12", clickable=True, box=(1, 2, 30, 40)),
        20: ElementFacts(bid="a0", clickable=False, box=(0, 0, 0, 40)),
    }
    assert facts[11].visible
    assert not facts[20].visible
    assert frames == {"F0": None, "F1": 12}


@given(st.integers(0, 20_000), st.integers(0, 1 << 31))
def test_element_ids_say_which_frame_they_are_of(frame: int, number: int) -> None:
    letters = letters_of(frame)
    assert letters.isalpha()
    assert split_bid(f"{letters}{number}") == (letters, number)
    assert split_bid(str(number)) == ("", number)


def test_frame_letters_never_repeat() -> None:
    assert [letters_of(n) for n in (0, 25, 26, 27, 701, 702)] == ["a", "z", "aa", "ab", "zz", "aaa"]
    assert len({letters_of(n) for n in range(3000)}) == 3000


@pytest.mark.parametrize("text", ["", "a", "12a", "A1", "1 2", "-1", "a1b2"])
def test_what_is_no_element_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="element id"):
        split_bid(text)


def test_screen_sizes() -> None:
    size = parse_screen_size("1280x720")
    assert (size.width, size.height) == (1280, 720)
    for text in ("1280", "x", "1280x720x24", "0x0", "100000x720", "-1x5"):
        with pytest.raises(ValueError, match="screen size"):
            parse_screen_size(text)


def test_calls_that_do_not_fit_are_refused_before_they_run() -> None:
    ran: list[str] = []

    async def poke(where: str, hard: bool = False) -> None:
        ran.append(where)

    registry = Registry()
    registry.add("action", {"poke": poke})
    with pytest.raises(ToolRefusedError, match=r"no tool named 'pok'.*poke"):
        registry.find("pok")
    for args in ({}, {"where": "x", "how": 1}):
        with pytest.raises(ToolRefusedError, match="poke"):
            registry.find("poke").bind(args)
    assert ran == []
    asyncio.run(_wait(registry.find("poke").bind({"where": "here"})))
    assert ran == ["here"]
    assert registry.describe()["poke"]["kind"] == "action"


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def test_commands_run_with_their_input_and_their_limits() -> None:
    result = asyncio.run(system.shell(["/bin/cat"], input=b"in\0put"))
    assert result == {"exit_code": 0, "stdout": b"in\0put", "stderr": b"", "timed_out": False}
    failed = asyncio.run(system.shell([sys.executable, "-c", "import sys; sys.exit(3)"]))
    assert failed["exit_code"] == 3
    # The grandchild holds the pipe open: it has to go too.
    slow = asyncio.run(system.shell(["/bin/sh", "-c", "echo begun; sleep 600 & wait"], timeout_s=0.3))
    assert slow["timed_out"]
    assert slow["exit_code"] == 128 + 9
    assert slow["stdout"] == b"begun\n"
    with pytest.raises(FileNotFoundError):
        asyncio.run(system.shell(["/no/such/program"]))


def test_files_are_written_whole(tmp_path: Any) -> None:
    path = tmp_path / "a" / "b.txt"
    assert asyncio.run(system.write_file(str(path), "grün")) == 5
    assert asyncio.run(system.read_file(str(path))) == "grün".encode()
    asyncio.run(system.write_file(str(path), b"\0\1"))
    assert path.read_bytes() == b"\0\1"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize(("program", "still"), [("sys.stdin.read()", True), ("[0 for _ in iter(int, 1)]", False)])
def test_threads_stand_still_or_take_processor_time(program: str, still: bool) -> None:
    argv = [sys.executable, "-c", f"import sys; print(flush=True); {program}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            watch = quiet.Stillness(0.1, [f"/proc/{process.pid}/task/{process.pid}"])
            assert asyncio.run(watch.wait()) is still
            assert watch.spent() is not still
        finally:
            process.kill()


def test_a_thread_that_has_ended_stands_still() -> None:
    assert asyncio.run(quiet.Stillness(0.1, [f"/proc/{os.getpid()}/task/0"]).wait())


def test_threads_are_found_by_program_and_name_when_they_come_and_go() -> None:
    thread = "threading.Thread(target=input).start()"
    script = f"import threading; print(flush=True); input(); {thread}; print(flush=True) or input()"
    mark = f"looked-for-{os.getpid()}"
    argv = [sys.executable, "-c", f"{script}  # {mark}"]
    threads = quiet.Threads({mark.encode(): ()})
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            assert threads.find() == threads.find() == [f"/proc/{process.pid}/task/{process.pid}"]
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            assert len(threads.find()) == 2
        finally:
            process.kill()
    assert threads.find() == []
