# SPDX-License-Identifier: Apache-2.0
"""A live browser and desktop, forked: what was there goes on in the source and in each branch, apart from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import engines

from bunshin_gym.images import ImageStore
from bunshin_gym.toolclient import ToolClient
from bunshin_gym.workspace import Workspace

INSIDE = Path(__file__).parent / "inside"
SCREEN = (640, 480)
NAMES = ("source", "left", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A workspace with a browser, and its tools."""

    name: str
    workspace: Workspace
    tools: ToolClient

    def evaluate(self, script: str, arg: Any = None) -> Any:
        return self.tools.evaluate(script, arg)

    def act(self, name: str, **args: Any) -> dict[str, Any]:
        seen = self.tools.step(name, args)
        assert seen["last_action_error"] == "", f"{self.name}: {seen['last_action_error']}"
        return seen

    def show(self, html: str) -> None:
        self.tools.write_file("/srv/page.html", f"<!doctype html><title>Page</title>{html}")
        self.act("goto", url="file:///srv/page.html")

    def run(self, *argv: str) -> str:
        done = self.workspace.exec(argv, timeout_s=180)
        assert done.exit_code == 0, f"{self.name}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def processes(self) -> str:
        """Inner pids and names of all that lasts; the command that lists them is not among them."""
        listing = "for p in /proc/[0-9]*; do test $p = /proc/$$ || echo ${p#/proc/} $(cat $p/comm); done"
        return self.run("sh", "-c", listing)


class Forks:
    """Makes branches of the source and closes them."""

    def __init__(self, source: Side, engine: str) -> None:
        self.source = source
        self.engine = engine
        self._stack = ExitStack()

    def __call__(self) -> list[Side]:
        """The source and two branches of it."""
        branches = self.source.workspace.fork(2, engine=self.engine)
        for branch in branches:
            self._stack.callback(branch.close)
        sides = [self.source]
        for name, branch in zip(NAMES[1:], branches, strict=True):
            tools = self._stack.enter_context(ToolClient(branch.root))
            sides.append(Side(name=name, workspace=branch, tools=tools))
        return sides

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def desktop() -> Iterator[Side]:
    """One booted desktop for all of these tests."""
    workspace = Workspace.start(ImageStore().get("browser"), screen=SCREEN)
    with workspace, ToolClient(workspace.root) as tools:
        tools.wait_ready()
        for path in INSIDE.glob("*.py"):
            tools.write_file(f"/srv/{path.name}", path.read_text())
        yield Side(name="source", workspace=workspace, tools=tools)


@pytest.fixture(params=engines())
def forks(desktop: Side, request: pytest.FixtureRequest) -> Iterator[Forks]:
    desktop.tools.call("reset_browser")
    made = Forks(desktop, request.param)
    yield made
    made.close()


# ---- memory of a page -------------------------------------------------------

BUILD_HEAP = """
(count) => {
  const numbers = new Float64Array(count), objects = new Map(), many = count >> 5;
  let calls = 0;
  for (let i = 0; i < count; i++) numbers[i] = (i * 1103515245) % 2147483647;
  for (let i = 0; i < many; i++) objects.set(`key ${i}`, {i, text: `text ${i}`, back: null});
  for (const one of objects.values()) one.back = objects.get(`key ${(one.i * 7 + 1) % many}`);
  window.heap = {numbers, objects, call: () => ++calls};
}
"""
READ_HEAP = """
() => {
  let sum = 0, walk = 0, texts = 0;
  for (let i = 0; i < heap.numbers.length; i++) sum = (sum + heap.numbers[i] * (i % 1000)) % 4294967291;
  for (const one of heap.objects.values()) { walk += one.back.i; texts += one.text.length; }
  return [sum, walk, texts, heap.call()];
}
"""
CHANGE_HEAP = """
(value) => {
  const numbers = heap.numbers;
  for (let i = numbers.length / 4; i < numbers.length / 2; i += 512) numbers[i] = value;
  for (let i = 0; i < 50; i++) window.junk = new Array(1e5).fill({value});
}
"""
COUNT = 4 << 20


def expected_heap(calls: int, changed_to: int | None = None) -> list[int]:
    """What READ_HEAP has to say."""
    index = np.arange(COUNT, dtype=np.int64)
    numbers = index * 1103515245 % 2147483647
    if changed_to is not None:
        numbers[COUNT // 4 : COUNT // 2 : 512] = changed_to
    many = COUNT >> 5
    walk = sum((i * 7 + 1) % many for i in range(many))
    texts = sum(len(f"text {i}") for i in range(many))
    return [int((numbers * (index % 1000) % 4294967291).sum() % 4294967291), walk, texts, calls]


def test_a_large_heap_is_carried_and_then_its_own(forks: Forks) -> None:
    """32 MiB of numbers in one array, a web of objects, a variable that only a closure sees."""
    forks.source.show("heap")
    forks.source.evaluate(BUILD_HEAP, COUNT)
    assert forks.source.evaluate(READ_HEAP) == expected_heap(1)
    sides = forks()
    assert [side.evaluate(READ_HEAP) for side in sides] == [expected_heap(2)] * 3
    for value, side in enumerate(sides, start=1):
        side.evaluate(CHANGE_HEAP, value)
    for value, side in enumerate(sides, start=1):
        assert side.evaluate(READ_HEAP) == expected_heap(3, value), side.name


# ---- time in a page ---------------------------------------------------------

COUNTER = """
() => {
  window.ticks = [];
  window.interval = setInterval(() => ticks.push(ticks.length), 10);
  window.fired = 0;
  setTimeout(() => { fired++; }, 1500);
}
"""
UNTIL = """
(condition) => new Promise(done => {
  const look = setInterval(() => { if (eval(condition)) { clearInterval(look); done(ticks.length); } }, 5);
})
"""


def test_timers_run_on_from_the_moment_of_the_fork(forks: Forks) -> None:
    forks.source.show("timers")
    forks.source.evaluate(COUNTER)
    forks.source.evaluate(UNTIL, "ticks.length >= 20")
    sides = forks()
    frozen_at = sides[1].evaluate("() => ticks.length")
    assert frozen_at >= 20
    for side in sides:
        assert side.evaluate(UNTIL, f"ticks.length >= {frozen_at + 100}") >= frozen_at + 100
        assert side.evaluate("() => ticks.every((tick, index) => tick === index)"), side.name
    for side in sides:
        side.evaluate(UNTIL, "fired > 0")
        assert side.evaluate("() => fired") == 1, side.name
    stopped = sides[1].evaluate("() => { clearInterval(interval); return ticks.length; }")
    for side in (sides[0], sides[2]):
        side.evaluate(UNTIL, f"ticks.length >= {stopped + 20} && fired === 1")
    assert sides[1].evaluate("() => ticks.length") == stopped


# ---- what was typed ---------------------------------------------------------


def test_text_in_a_box_is_typed_on_at_the_caret(forks: Forks) -> None:
    source = forks.source
    source.show("<input id=box autofocus><textarea id=other>untouched</textarea>")
    source.evaluate("() => document.getElementById('box').focus()")
    source.act("keyboard_type", text="before|after")
    for _ in range(len("after")):
        source.act("keyboard_press", key="ArrowLeft")
    sides = forks()
    for side in sides:
        side.act("keyboard_type", text=f"{side.name} ")
    for side in sides:
        side.act("keyboard_type", text="on ")
        state = side.evaluate("() => [box.value, box.selectionStart, document.activeElement.id, other.value]")
        text = f"before|{side.name} on "
        assert state == [f"{text}after", len(text), "box", "untouched"]
    # The browser's own memory of what was typed: undone in one, it stays in the others.
    sides[1].act("keyboard_press", key="Control+z")
    assert sides[1].evaluate("() => box.value") != f"before|{sides[1].name} on after"
    assert sides[2].evaluate("() => box.value") == f"before|{sides[2].name} on after"


# ---- tabs -------------------------------------------------------------------


def test_a_second_tab_is_carried_and_then_its_own(forks: Forks) -> None:
    source = forks.source
    source.show("<h1>first</h1>")
    source.evaluate("() => { window.mark = 'first'; }")
    source.act("new_tab")
    source.show("<h1>second</h1>")
    source.evaluate("() => { window.mark = 'second'; }")
    sides = forks()
    for side in sides:
        assert side.tools.observe(screenshot=False)["active_page_index"] == 1
        assert side.evaluate("() => mark") == "second"
        side.act("tab_focus", index=0)
        assert side.evaluate("() => mark") == "first"
        side.evaluate("name => { mark = name; document.title = name; }", side.name)
    sides[1].act("tab_close")
    sides[2].act("new_tab")
    for side, tabs in zip(sides, (["source", "Page"], ["Page"], ["right", "Page", ""]), strict=True):
        assert side.tools.observe(screenshot=False)["open_pages_titles"] == tabs, side.name
    assert sides[1].evaluate("() => mark") == "second"
    sides[0].act("tab_focus", index=1)
    assert sides[0].evaluate("() => mark") == "second"


# ---- live DevTools connections ----------------------------------------------


def test_playwrights_session_goes_on(forks: Forks) -> None:
    """The tool server's Playwright holds its driver and its DevTools sessions open all the time."""
    source = forks.source
    source.show("<button onclick=\"this.textContent = 'pressed ' + window.who; alert(window.who)\">Press</button>")
    before = source.tools.observe()
    processes = source.processes()
    sides = forks()
    for side in sides:
        assert side.processes() == processes, f"{side.name}: something was started anew"
        side.evaluate("who => { window.who = who; }", side.name)
    for side in sides:
        seen = side.tools.observe()
        assert (seen["axtree_txt"], seen["notices"]) == (before["axtree_txt"], [])
        bid = seen["axtree_txt"].partition("] button")[0].rpartition("[")[2]
        seen = side.act("click", bid=bid)
        # The dialog is an event that the browser sends by itself.
        assert seen["notices"] == [f"a alert dialog was confirmed: '{side.name}'"]
        assert f"button 'pressed {side.name}'" in seen["axtree_txt"]
        assert not np.array_equal(seen["screenshot"], before["screenshot"])


CHROMIUM = (
    "exec /usr/lib/chromium/chromium --headless=new --no-sandbox --disable-gpu --disable-breakpad"
    " --disable-crash-reporter --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    " --remote-debugging-port=0 --user-data-dir=/tmp/cdp about:blank > /tmp/cdp.log 2>&1 < /dev/null &"
)
SERVE = "exec python3 /srv/cdp_client.py serve /tmp/cdp > /tmp/cdp-client.log 2>&1 < /dev/null &"
WAIT = "i=0; until test -e {0}; do i=$((i + 1)); test $i -lt 9000 || exit 1; sleep 0.01; done"


@pytest.fixture
def cdp(forks: Forks) -> Iterator[Forks]:
    """In a branch, a second, headless Chromium with a port, and a client that keeps a WebSocket to it open."""
    branch = forks()[1]
    branch.run("sh", "-c", CHROMIUM)
    branch.run("sh", "-c", WAIT.format("/tmp/cdp/DevToolsActivePort"))
    branch.run("sh", "-c", SERVE)
    branch.run("sh", "-c", WAIT.format("/run/cdp-client.ready"))
    made = Forks(replace(branch, name="source"), forks.engine)
    yield made
    made.close()


def ask(side: Side, expression: str, **params: Any) -> dict[str, Any]:
    """Evaluates through the connection that was open before the fork."""
    body = json.dumps({"expression": expression, "returnByValue": True, **params})
    answer: dict[str, Any] = json.loads(side.run("python3", "/srv/cdp_client.py", "ask", "Runtime.evaluate", body))
    return answer


def test_a_websocket_to_devtools_goes_on(cdp: Forks) -> None:
    source = cdp.source
    ask(source, "window.state = {n: 41}; console.log('before'); 0")
    # Answered only after the fork, by whatever comes in that side.
    pending = "window.later = new Promise(done => { window.release = done; }); later"
    question = json.dumps({"expression": pending, "awaitPromise": True, "returnByValue": True})
    waiting = f"exec python3 /srv/cdp_client.py ask Runtime.evaluate '{question}' > /tmp/answer 2>&1 < /dev/null &"
    source.run("sh", "-c", f"rm -f /tmp/answer; {waiting}")
    while ask(source, "typeof release")["result"]["value"] != "function":
        continue
    number = ask(source, "0")["number"]
    sides = cdp()
    for side in sides:
        answer = ask(
            side, f"state.n += 1; state.name = '{side.name}'; console.log('{side.name}'); JSON.stringify(state)"
        )
        assert answer["number"] == number + 1, "another connection than before"
        assert json.loads(answer["result"]["value"]) == {"n": 42, "name": side.name}
    for side in sides:
        assert json.loads(side.run("python3", "/srv/cdp_client.py", "events")) == {"count": 2, "last": side.name}
        ask(side, f"release('released in {side.name}')")
        side.run("sh", "-c", WAIT.format("$(test -s /tmp/answer && echo /tmp/answer || echo /none)"))
        assert json.loads(side.run("cat", "/tmp/answer"))["result"]["value"] == f"released in {side.name}"


# ---- a site and what a browser keeps of it -------------------------------------

SITE = "exec python3 /srv/site.py 8080 /srv/shop.sqlite > /tmp/site.log 2>&1 < /dev/null &"
WAIT_FOR_SITE = """
import socket, time
deadline = time.monotonic() + 30
while True:
    try:
        socket.create_connection(("127.0.0.1", 8080)).close()
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.05)
"""
STORE = """
async (value) => {
  localStorage.cart = (localStorage.cart || '') + value;
  sessionStorage.cart = (sessionStorage.cart || '') + value;
  const opened = indexedDB.open('shop', 1);
  const database = await new Promise((done, failed) => {
    opened.onupgradeneeded = () => opened.result.createObjectStore('cart', {autoIncrement: true});
    opened.onsuccess = () => done(opened.result);
    opened.onerror = () => failed(opened.error);
  });
  const change = database.transaction('cart', 'readwrite');
  if (value) change.objectStore('cart').add(value);
  const all = change.objectStore('cart').getAll();
  await new Promise((done) => { change.oncomplete = done; });
  database.close();
  return [localStorage.cart, sessionStorage.cart, all.result.join('')];
}
"""


def test_each_side_sees_its_own_cart(forks: Forks) -> None:
    """The site's database and memory, the visitor's cookie, and all that a page may keep in the browser."""
    source = forks()[1]
    source.run("sh", "-c", SITE)
    source.run("python3", "-c", WAIT_FOR_SITE)
    made = Forks(replace(source, name="source"), forks.engine)
    try:
        made.source.act("goto", url="http://localhost:8080/?add=common")
        assert made.source.evaluate(STORE, "a") == ["a", "a", "a"]
        served = int(made.source.evaluate("() => served.textContent"))
        sides = made()
        for side in sides:
            side.act("goto", url=f"http://localhost:8080/?add={side.name}")
            side.evaluate(STORE, side.name)
        for side in sides:
            side.act("goto", url="http://localhost:8080/")
            assert side.evaluate("() => cart.textContent") == f"common {side.name}"
            assert int(side.evaluate("() => served.textContent")) == served + 2
            assert side.evaluate(STORE, "") == [f"a{side.name}"] * 3
    finally:
        made.close()


# ---- the X server -----------------------------------------------------------


def test_new_clients_connect_to_the_x_server(forks: Forks) -> None:
    """By the name in the file system and by the one outside of it, both as they were."""

    def client(side: Side, kind: str, *args: str) -> str:
        return side.run("python3", "/srv/x_client.py", kind, "BUNSHIN_TEST", *args)

    assert client(forks.source, "path", "before") == "before"
    sides = forks()
    for kind, other in (("path", "abstract"), ("abstract", "path")):
        for side in sides:
            assert client(side, kind, f"{side.name} {kind}") == f"{side.name} {kind}"
        assert [client(side, other) for side in sides] == [f"{name} {kind}" for name in NAMES]
    # Another program, which finds the server by itself.
    for side in sides:
        assert f'"{side.name} abstract"' in side.run("xprop", "-root", "BUNSHIN_TEST")
