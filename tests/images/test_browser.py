# SPDX-License-Identifier: Apache-2.0
"""The browser image and its tool server: every action, and what an observation tells of it."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chroot import Chroot, wait_until

from bunshin_gym.errors import ToolError, ToolTimeoutError, ToolUnavailableError
from bunshin_gym.toolclient import ToolClient

HERE = Path(__file__).parent
URL = "file:///srv/page.html"


@pytest.fixture
def page(tools: ToolClient) -> ToolClient:
    for name in ("page.html", "other.html"):
        tools.write_file(f"/srv/{name}", (HERE / name).read_bytes())
    assert act(tools, "goto", url=URL)["title"] == "Sample"
    return tools


def act(tools: ToolClient, name: str, **args: Any) -> dict[str, Any]:
    """An action that has to succeed, and what is seen after it."""
    seen = tools.step(name, args)
    assert seen["last_action_error"] == "", seen["last_action_error"]
    return seen


def bid(tools: ToolClient, what: str) -> str:
    """The id of the element whose line of the tree has this text."""
    tree = tools.observe(screenshot=False)["axtree_txt"]
    found = re.findall(rf"\[(\w+)\] [^\n]*{re.escape(what)}", tree)
    assert len(found) == 1, f"{what}: {found} in\n{tree}"
    return str(found[0])


def said(tools: ToolClient) -> str:
    return str(tools.evaluate("() => document.getElementById('said').textContent"))


# ---- what is seen


def test_a_browser_is_few_processes(page: ToolClient) -> None:
    """Each is one more for a fork to carry. A new Chromium may call otherwise what keeps them few, and what draws."""
    script = "for p in /proc/[0-9]*; do echo $(tr '\\0' ' ' <$p/cmdline) $(cat $p/task/*/comm); done 2>/dev/null"
    lines = page.shell(["/bin/sh", "-c", script])["stdout"].decode().splitlines()
    lines = [line for line in lines if line.startswith("/usr/lib/chromium/")]
    kinds = {re.sub(r"^\S+/(\S+)( --type=\S+)?( --utility-sub-type=\S+)? .*", r"\1\2\3", line): line for line in lines}
    storage = "chromium --type=utility --utility-sub-type=storage.mojom.StorageService"
    assert kinds.keys() == {"chromium", "chromium --type=zygote", "chromium --type=renderer", storage}
    assert {"Chrome_InProcGp", "Chrome_IOThread", "VizCompositorTh"} <= set(kinds["chromium"].split())


def test_a_blank_page_covers_the_screen(tools: ToolClient) -> None:
    seen = tools.observe()
    shot = seen["screenshot"]
    assert shot.shape == (720, 1280, 3)
    assert shot.dtype == np.uint8
    assert (shot == 255).all(), "something else than the page is on the screen"
    assert tools.evaluate("() => [innerWidth, innerHeight]") == [1280, 720]
    assert seen["url"] == "about:blank"
    assert seen["open_pages_urls"] == ["about:blank"]


def test_the_picture_is_never_older_than_the_last_change(tools: ToolClient) -> None:
    for n in range(40):
        color = [(n * 53) % 256, (n * 101) % 256, (n * 197) % 256]
        tools.evaluate("c => { document.body.style.background = `rgb(${c})`; }", color)
        shot = tools.observe(tree=False)["screenshot"]
        assert (shot == color).all(), f"round {n}: {shot[0, 0]} instead of {color}"


def test_the_picture_shows_the_actions_effect(page: ToolClient) -> None:
    page.evaluate(
        "() => { onclick = () => { const b = document.body; b.textContent = ''; b.style.background = 'red'; } }"
    )
    shot = act(page, "mouse_click", x=600, y=300)["screenshot"]
    assert (shot == [255, 0, 0]).all()


def test_equal_states_give_equal_pictures(page: ToolClient) -> None:
    first = page.observe()
    again = page.observe()
    assert (first["screenshot"] == again["screenshot"]).all()
    assert first["axtree_txt"] == again["axtree_txt"]


def test_a_menu_is_on_the_picture_while_it_is_open(page: ToolClient) -> None:
    closed = page.observe()["screenshot"]
    opened = act(page, "click", bid=bid(page, "combobox"))["screenshot"]
    assert (opened != closed).any()
    act(page, "keyboard_press", key="Escape")
    page.evaluate("() => document.activeElement.blur()")
    assert (page.observe()["screenshot"] == closed).all()


def test_a_text_cursor_does_not_blink(page: ToolClient) -> None:
    first = act(page, "focus", bid=bid(page, "textbox 'Name'"))["screenshot"]
    for _ in range(6):
        page.call("noop", {"wait_ms": 250})
        assert (page.observe(tree=False)["screenshot"] == first).all()


def test_the_tree_tells_roles_states_and_frames(page: ToolClient) -> None:
    act(page, "fill", bid=bid(page, "textbox 'Name'"), value="Ann")
    tree = page.observe(screenshot=False)["axtree_txt"]
    assert re.search(r"\[\d+\] textbox 'Name', value='Ann'.*focused", tree)
    assert re.search(r"\[\d+\] button 'Never'.*disabled", tree)
    assert re.search(r"\[\d+\] checkbox .*checked=false", tree)
    assert re.search(r"\[a\d+\] button 'Inside', clickable", tree)
    assert re.search(r"\[b\d+\] textbox 'Deepest'", tree)
    assert re.search(r"\[\d+\] button 'Shadow'", tree)
    depth = {name: len(re.search(rf"\n(\t*)[^\n]*{name}", tree)[1]) for name in ("Inner", "Inside", "Deepest")}  # type: ignore[index]
    assert depth["Inner"] < depth["Inside"] < depth["Deepest"]


def test_ids_stay_with_their_elements(page: ToolClient) -> None:
    before = {name: bid(page, name) for name in ("'Press'", "'Away'", "'Inside'")}
    page.evaluate(
        """() => {
          const first = document.createElement('button');
          first.textContent = 'Newcomer';
          document.body.prepend(first);
          const twin = document.getElementById('away').cloneNode(true);
          twin.textContent = 'Twin';
          document.body.append(twin);
        }"""
    )
    assert {name: bid(page, name) for name in before} == before
    ids = re.findall(r"\[(\w+)\]", page.observe(screenshot=False)["axtree_txt"])
    assert len(ids) == len(set(ids))
    assert bid(page, "'Twin'") != before["'Away'"]


def test_a_page_at_rest_was_not_read(tools: ToolClient) -> None:
    tools.write_file("/srv/page.html", (HERE / "page.html").read_bytes())
    tools.call("goto", {"url": URL})
    tools.call("rest")
    assert tools.evaluate("() => document.querySelectorAll('[bid]').length") == 0
    tools.observe()
    assert tools.evaluate("() => document.documentElement.getAttribute('bid')") == "0"


def test_focus_and_dom_text(page: ToolClient) -> None:
    text = bid(page, "textbox 'Name'")
    assert act(page, "focus", bid=text)["focused_element_bid"] == text
    inner = bid(page, "textbox 'Deepest'")
    assert act(page, "focus", bid=inner)["focused_element_bid"] == inner
    seen = page.observe(dom=True, tree=False, screenshot=False)
    assert ">Sample</title>" in seen["dom"]
    assert seen["screenshot"] is None
    assert seen["axtree_txt"] == ""


# ---- what is done


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("click", {}, "pressed 0"),
        ("click", {"modifiers": ["Shift"]}, "pressed 0 shift"),
        ("dblclick", {}, "twice"),
        ("press", {"key_comb": "Enter"}, "pressed 0"),
    ],
)
def test_buttons(page: ToolClient, name: str, args: dict[str, Any], result: str) -> None:
    act(page, name, bid=bid(page, "'Press'"), **args)
    assert said(page) == result


@pytest.mark.parametrize(("what", "result"), [("'Inside'", "inner"), ("'Shadow'", "shadow"), ("'Bottom'", "bottom")])
def test_elements_in_frames_in_shadow_and_out_of_sight(page: ToolClient, what: str, result: str) -> None:
    act(page, "click", bid=bid(page, what))
    assert said(page) == result


def test_hover(page: ToolClient) -> None:
    act(page, "hover", bid=bid(page, "'Press'"))
    assert page.evaluate("() => hovered") is True


def test_form_elements(page: ToolClient) -> None:
    text = bid(page, "textbox 'Name'")
    value = "() => document.getElementById('text').value"
    act(page, "fill", bid=text, value="Änn ☃")
    assert page.evaluate(value) == "Änn ☃"
    act(page, "clear", bid=text)
    assert page.evaluate(value) == ""
    act(page, "fill", bid=text, value="typed", enable_autocomplete_menu=True)
    assert page.evaluate(value) == "typed"
    assert page.evaluate("() => lastKey") == "d"
    act(page, "press", bid=text, key_comb="Control+a")
    act(page, "keyboard_type", text="new")
    act(page, "keyboard_insert_text", text="est")
    act(page, "keyboard_press", key="ArrowLeft")
    act(page, "keyboard_down", key="Shift")
    act(page, "keyboard_press", key="X")
    act(page, "keyboard_up", key="Shift")
    assert page.evaluate(value) == "newesXt"
    box = bid(page, "checkbox")
    act(page, "check", bid=box)
    assert said(page) == "tick true"
    act(page, "uncheck", bid=box)
    assert said(page) == "tick false"
    choice = bid(page, "combobox")
    act(page, "select_option", bid=choice, options="Blue")
    assert said(page) == "chose b"
    act(page, "select_option", bid=choice, options="r")
    assert said(page) == "chose r"


def test_files_are_chosen_inside_the_workspace(page: ToolClient) -> None:
    act(page, "upload_file", bid=bid(page, "Choose Files"), file=["/srv/page.html", "/srv/other.html"])
    assert said(page) == "files page.html,other.html"


def test_dragging(page: ToolClient) -> None:
    act(page, "drag_and_drop", from_bid=_by_id(page, "drag"), to_bid=_by_id(page, "drop"))
    assert said(page) == "dropped load"
    page.evaluate("() => say('')")
    spots = page.evaluate(
        """() => ['drag', 'drop'].map(n => document.getElementById(n).getBoundingClientRect())
          .map(b => [b.x + 9, b.y + 9])"""
    )
    (from_x, from_y), (to_x, to_y) = spots
    act(page, "mouse_drag_and_drop", from_x=from_x, from_y=from_y, to_x=to_x, to_y=to_y)
    assert said(page) == "dropped load"


def _by_id(tools: ToolClient, name: str) -> str:
    tools.observe(screenshot=False)
    return str(tools.evaluate("n => document.getElementById(n).getAttribute('bid')", name))


def test_the_mouse_by_coordinates(page: ToolClient) -> None:
    page.evaluate(
        "() => { trail = []; for (const t of ['mousedown', 'mouseup', 'mousemove', 'dblclick', 'contextmenu'])"
        " addEventListener(t, e => { trail.push([t, e.clientX, e.clientY, e.button]); }); }"
    )
    act(page, "mouse_move", x=700, y=300)
    act(page, "mouse_down", x=710, y=310)
    act(page, "mouse_up", x=720, y=320)
    act(page, "mouse_dblclick", x=730, y=330)
    act(page, "mouse_click", x=740, y=340, button="right")
    trail = page.evaluate("() => trail")
    for event in (
        ["mousemove", 700, 300, 0],
        ["mousedown", 710, 310, 0],
        ["mouseup", 720, 320, 0],
        ["dblclick", 730, 330, 0],
        ["contextmenu", 740, 340, 2],
    ):
        assert event in trail


def test_scrolling(page: ToolClient) -> None:
    act(page, "scroll", delta_x=0, delta_y=500)
    assert page.evaluate("() => scrollY") == 500
    act(page, "scroll_at", x=600, y=100, dx=0, dy=-200)
    assert page.evaluate("() => scrollY") == 300


def test_waiting(page: ToolClient) -> None:
    page.evaluate("() => { setTimeout(() => say('later'), 150); }")
    act(page, "noop", wait_ms=300)
    assert said(page) == "later"


# ---- tabs and history


def test_history(page: ToolClient) -> None:
    assert act(page, "click", bid=bid(page, "'Away'"))["title"] == "Other"
    assert act(page, "go_back")["title"] == "Sample"
    assert act(page, "go_forward")["title"] == "Other"
    assert "forward" in page.step("go_forward", {})["last_action_error"]


def test_tabs(page: ToolClient) -> None:
    assert act(page, "new_tab")["active_page_index"] == 1
    seen = act(page, "goto", url="file:///srv/other.html")
    assert seen["open_pages_titles"] == ["Sample", "Other"]
    assert seen["active_page_index"] == 1
    seen = act(page, "tab_focus", index=0)
    assert (seen["title"], seen["active_page_index"]) == ("Sample", 0)
    assert "tab 7" in page.step("tab_focus", {"index": 7})["last_action_error"]
    act(page, "tab_focus", index=1)
    seen = act(page, "tab_close")
    assert seen["open_pages_titles"] == ["Sample"]
    assert act(page, "tab_close")["open_pages_urls"] == ["about:blank"]


def test_new_windows_become_tabs(page: ToolClient) -> None:
    seen = act(page, "click", bid=bid(page, "'Popup'"))
    assert seen["open_pages_titles"] == ["Sample", "Other"]
    assert seen["active_page_index"] == 1
    assert act(page, "tab_close")["title"] == "Sample"
    page.evaluate("() => { window.open('other.html', 'w', 'width=300,height=200'); }")
    seen = act(page, "noop", wait_ms=300)
    assert seen["title"] == "Other"
    assert page.evaluate("() => [innerWidth, innerHeight]") == [1280, 720]


# ---- what goes wrong


def test_dialogs_block_nothing_and_are_told(page: ToolClient) -> None:
    for what, result, notice in (
        ("'Alert'", "after alert", "alert dialog was confirmed: 'attention'"),
        ("'Confirm'", "answer false", "confirm dialog was declined: 'really?'"),
        ("'Prompt'", "name null", "prompt dialog was declined: 'who?'"),
    ):
        seen = act(page, "click", bid=bid(page, what))
        assert said(page) == result
        assert any(notice in line for line in seen["notices"]), seen["notices"]
    assert page.observe(screenshot=False)["notices"] == []


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("click", {"bid": "99999"}, "no element with id '99999'"),
        ("click", {"bid": "zz3"}, "no element with id 'zz3'"),
        ("click", {"bid": "press me"}, "not an element id"),
        ("click", {}, "bid"),
        ("click", {"bid": "1", "how": "hard"}, "how"),
        ("goto", {"url": "http://no.such.host.invalid/"}, "ERR_"),
        ("goto", {"url": "not an address"}, "invalid URL"),
        ("keyboard_press", {"key": "NoSuchKey"}, "NoSuchKey"),
        ("noop", {"wait_ms": -1}, "wait_ms"),
        ("mouse_click", {"x": "left", "y": 3}, "x"),
    ],
)
def test_a_failed_action_is_an_error_to_be_seen(page: ToolClient, name: str, args: dict[str, Any], error: str) -> None:
    seen = page.step(name, args)
    assert error in seen["last_action_error"]
    assert seen["screenshot"].shape == (720, 1280, 3)
    assert act(page, "noop", wait_ms=0)["last_action_error"] == ""


def test_what_cannot_be_clicked_says_why(page: ToolClient) -> None:
    covered = page.step("click", {"bid": bid(page, "'Covered'")})["last_action_error"]
    disabled = page.step("click", {"bid": bid(page, "'Never'")})["last_action_error"]
    assert "Timeout" in covered
    assert "intercepts pointer events" in covered
    assert "not enabled" in disabled


def test_a_page_that_hangs_is_survived(page: ToolClient) -> None:
    started = time.monotonic()
    seen = page.step("click", {"bid": bid(page, "'Hang'")})
    assert seen["page_error"] == "the page does not answer"
    assert seen["screenshot"].shape == (720, 1280, 3)
    assert time.monotonic() - started < 30
    page.call("reset_browser")
    assert page.observe()["url"] == "about:blank"


def test_a_crashed_page_is_replaced(page: ToolClient) -> None:
    page.step("goto", {"url": "chrome://crash"})
    seen = act(page, "goto", url=URL)
    assert seen["title"] == "Sample"
    assert len(seen["open_pages_urls"]) == 1


def test_a_killed_browser_is_started_again(page: ToolClient, desktop: Chroot) -> None:
    page.shell(["/usr/bin/pkill", "-9", "-o", "-f", "user-data-dir.*remote-debugging-pipe"])
    # Nobody says when it is noticed; the action that notices fails, and says why.
    for attempt in wait_until(AssertionError, 20):
        with attempt:
            seen = page.step("mouse_move", {"x": 1, "y": 1})
            assert "started again" in " ".join(seen["notices"])
    assert act(page, "goto", url=URL)["title"] == "Sample"
    assert page.observe()["screenshot"].shape == (720, 1280, 3)


# ---- tasks' tools


def test_reset_forgets_everything(page: ToolClient) -> None:
    act(page, "new_tab")
    act(page, "goto", url=URL)
    page.evaluate("() => { localStorage.setItem('k', 'v'); document.cookie = 'a=b'; }")
    act(page, "send_msg_to_user", text="hello")
    assert page.observe(screenshot=False)["messages"] == [{"role": "assistant", "message": "hello"}]
    page.call("reset_browser")
    seen = page.observe()
    assert (seen["open_pages_urls"], seen["messages"], seen["last_action_error"]) == (["about:blank"], [], "")
    act(page, "goto", url=URL)
    assert page.evaluate("() => [localStorage.length, document.cookie, history.length]") == [0, "", 2]
    assert page.step("report_infeasible", {"reason": "no"})["messages"] == [{"role": "infeasible", "message": "no"}]


def test_scripts_return_values_and_raise(page: ToolClient) -> None:
    value = {"a": [1, 2.5, None, True, "x"]}
    assert page.evaluate("v => v", value) == value
    assert page.evaluate("() => new Promise(done => setTimeout(() => done(7), 20))") == 7
    with pytest.raises(ToolError, match="boom"):
        page.evaluate("() => { throw new Error('boom'); }")
    seen = page.call("step", {"name": "noop", "args": {"wait_ms": 0}, "script": "() => 3"})
    assert seen["answer"] == {"value": 3}
    assert "boom" in page.observe(script="() => { throw new Error('boom'); }")["answer"]["error"]
    assert page.observe()["answer"] is None


def test_commands_and_files(tools: ToolClient) -> None:
    assert tools.shell(["/bin/sh", "-c", "echo $HOME; exit 4"])["exit_code"] == 4
    assert tools.write_file("/srv/deep/file", b"\0\xff") == 2
    assert tools.read_file("/srv/deep/file") == b"\0\xff"
    with pytest.raises(ToolError, match="FileNotFoundError"):
        tools.read_file("/no/such/file")


def test_calls_that_are_none_are_refused(tools: ToolClient) -> None:
    with pytest.raises(ToolError, match="no tool named 'fly'"):
        tools.call("fly")
    with pytest.raises(ToolError, match="not an action"):
        tools.step("observe", {})
    with pytest.raises(ToolError, match="observe"):
        tools.call("observe", {"sideways": True})
    with pytest.raises(ToolTimeoutError, match="noop"):
        tools.call("noop", {"wait_ms": 2000}, timeout_s=0.2)


def test_many_threads_at_once(page: ToolClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: page.evaluate("n => n * 2", n), range(64)))
    assert results == [n * 2 for n in range(64)]


# ---- what a fork needs


def test_between_calls_nothing_is_open_to_the_outside(page: ToolClient, desktop: Chroot) -> None:
    page.observe()
    inside = {Path(f"{desktop.root}/{name}").stat().st_dev for name in ("", "proc", "dev", "dev/shm")}
    for pid, command in desktop.processes().items():
        for path in Path(f"/proc/{pid}/fd").iterdir():
            target = path.readlink()
            assert "io_uring" not in str(target), f"{command}: {target}"
            if str(target).startswith("/") and "memfd:" not in str(target):
                assert path.stat().st_dev in inside, f"pid {pid} ({command}) holds {target} of the host"
    lines = page.shell(["/bin/cat", "/proc/net/unix"])["stdout"].decode().splitlines()
    tool = [line.split() for line in lines if line.endswith("tool.sock")]
    assert [entry[5] for entry in tool] == ["01"], "the tool server's socket should be there, and listen"
    tcp = page.shell(["/bin/sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"])["stdout"].decode()
    assert [line for line in tcp.splitlines() if ":" in line and "local_address" not in line] == []


def test_calls_leave_no_descriptor_and_no_task_behind(page: ToolClient, desktop: Chroot) -> None:
    def held() -> tuple[list[str], int]:
        files = sorted(str(path.readlink()) for path in Path(f"/proc/{desktop.pid}/fd").iterdir())
        return files, len(list(Path(f"/proc/{desktop.pid}/task").iterdir()))

    page.observe()
    before = held()
    for _ in range(30):
        page.observe()
        page.shell(["/bin/true"])
    assert held()[0] == before[0]
    assert held()[1] <= before[1] + 8, "threads of the default executor are bounded"


def test_a_workspace_cannot_point_its_client_elsewhere(tmp_path: Path, desktop: Chroot) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "run").symlink_to(f"{desktop.root}/run")
    with ToolClient(root) as client, pytest.raises(ToolUnavailableError, match=r"tool\.sock"):
        client.call("observe")


def test_a_client_that_was_closed_says_so(desktop: Chroot) -> None:
    client = ToolClient(desktop.root)
    client.close()
    client.close()
    with pytest.raises(ToolError, match="closed"):
        client.call("observe")


def test_another_screen_size(browser_image: Any, chroot_factory: Any) -> None:
    chroot = chroot_factory(browser_image, BUNSHIN_SCREEN="500x420")
    with ToolClient(chroot.root) as client:
        client.wait_ready()
        assert client.observe()["screenshot"].shape == (420, 500, 3)
        assert client.evaluate("() => [innerWidth, innerHeight]") == [500, 420]
    chroot.stop()


def test_a_start_that_fails_says_why(browser_image: Any, chroot_factory: Any) -> None:
    chroot = chroot_factory(browser_image, BUNSHIN_SCREEN="huge")
    with ToolClient(chroot.root) as client, pytest.raises(ToolError, match="1280x720"):
        client.wait_ready()
    chroot.stop()
