# SPDX-License-Identifier: Apache-2.0
"""The whole desktop: what an agent does and sees on it, and that it forks with each application open."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from support.desktop import key, run, wait_window
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from bunshin_gym.errors import ToolError
from bunshin_gym.tasks.scripted_desktop import Element, elements
from bunshin_gym.types import ToolCall

pytestmark = pytest.mark.root


def source(text: str) -> ToolCall:
    return ToolCall(name="pyautogui", args={"source": text})


def act(guest: Any, text: str) -> dict[str, Any]:
    seen = guest.act([source(text)])
    assert seen.error == ""
    return dict(seen.view)


def find(guest: Any, role: str, name: str) -> Element:
    found = [e for e in elements(guest.call("tree")["text"]) if (e.role, e.name) == (role, name)]
    assert found, f"no {role} {name!r}"
    return found[0]


def wait_cell(guest: Any, name: str, text: str) -> None:
    """Returns when a cell has a text."""

    def found() -> str | None:
        tree = ElementTree.fromstring(guest.call("tree")["text"])
        return next((node.text for node in tree.iter("table-cell") if node.get("name") == name), None)

    wrong = retry_if_result(lambda there: there != text)
    Retrying(retry=wrong, stop=stop_after_delay(240), wait=wait_fixed(0.2))(found)


def pids(guest: Any) -> set[str]:
    """Process ids behind the windows, as they are inside."""
    return {line.split()[2] for line in run(guest, "wmctrl -lp").splitlines()} - {"0"}


APPLICATIONS = [
    # what starts it, its window, a key that changes what it shows
    ("libreoffice --calc", "LibreOffice Calc", "pyautogui.write('123\\n')"),
    ("libreoffice --writer", "LibreOffice Writer", "pyautogui.write('hello')"),
    ("gimp", "GNU Image", "pyautogui.press('tab')"),
    ("vlc --no-audio --no-video-title-show", "VLC media player", "pyautogui.hotkey('ctrl', 'p')"),
    ("thunderbird", "Thunderbird", "pyautogui.press('f10')"),
    ("google-chrome about:blank", "Chromium", "pyautogui.hotkey('ctrl', 't')"),
    ("nautilus /home/user", "Thunar", "pyautogui.hotkey('ctrl', 'a')"),
]


@pytest.mark.parametrize(("command", "title", "change"), APPLICATIONS, ids=[row[1] for row in APPLICATIONS])
def test_it_forks_with_each_application_open(desktop: Any, command: str, title: str, change: str) -> None:
    desktop.call("launch", {"command": command, "shell": True})
    wait_window(desktop, title)
    (branch,) = desktop.fork(1)
    try:
        before = desktop.act(()).view["screenshot"]
        assert (branch.act(()).view["screenshot"] == before).all()
        # Both go on, and neither sees the other.
        changed = act(branch, change)["screenshot"]
        assert (changed != before).any()
        assert (desktop.act(()).view["screenshot"] == before).all()
        assert (act(desktop, change)["screenshot"] != before).any()
        assert pids(branch) == pids(desktop) != set()
    finally:
        branch.close()


def test_the_browser_ends_in_order_by_the_name_of_chrome_s_processes(desktop: Any) -> None:
    desktop.call("launch", {"command": ["google-chrome", "about:blank"]})
    wait_window(desktop, "Chromium")
    names = run(desktop, "cat $(pgrep -f ^/usr/lib/chromium/ | sed 's|.*|/proc/&/comm|')").split()
    assert set(names) <= {"chrome", "chrome_crashpad"}
    run(desktop, "pkill chrome; pidwait chrome || true")
    assert "Chromium" not in run(desktop, "wmctrl -l")
    # What it would have saved seconds later is on the disk.
    profile = json.loads(run(desktop, "cat ~/.config/google-chrome/Default/Preferences"))
    assert profile["profile"]["exit_type"] == "SessionEnded"


def test_a_spreadsheet_s_tree_has_the_cells_in_view_and_is_read_at_once(desktop: Any) -> None:
    desktop.call("put_file", {"path": "/home/user/t.csv", "data": b"Name,Points\nAda,17\nBoris,4\n"})
    desktop.call("launch", {"command": ["libreoffice", "--calc", "--infilter=CSV:44,34,76", "/home/user/t.csv"]})
    wait_window(desktop, "t.csv")
    wait_cell(desktop, "A1", "Name")
    tree = ElementTree.fromstring(desktop.act(()).view["accessibility_tree"])
    cells = {node.get("name"): node for node in tree.iter("table-cell")}
    assert [cells[name].text for name in ("A1", "B1", "A2", "B3")] == ["Name", "Points", "Ada", "4"]
    assert "A30" in cells
    assert "A5000" not in cells
    a2, b2 = (Element(cells[name]) for name in ("A2", "B2"))
    assert (a2.y, a2.x < b2.x, a2.height) == (b2.y, True, b2.height)
    act(desktop, f"pyautogui.click{b2.middle}")
    act(desktop, "pyautogui.write('99\\n')")
    wait_cell(desktop, "B2", "99")


def test_actions_and_their_errors(desktop: Any) -> None:
    assert act(desktop, "pyautogui.moveTo(300, 200)")["settled"]
    assert run(desktop, "xdotool getmouselocation").startswith("x:300 y:200")
    wrong = desktop.act([source("pyautogui.no_such_thing(1)"), source("pyautogui.moveTo(1, 1)")])
    assert "AttributeError" in wrong.error
    assert wrong.run == 1
    assert "SyntaxError" in desktop.act([source("this is no python")]).error
    assert desktop.act([source("import sys; sys.exit(0)")]).error == ""
    assert "exit code 3" in desktop.act([source("import sys; sys.exit(3)")]).error
    assert run(desktop, "xdotool getmouselocation").startswith("x:300 y:200")


def test_the_terminal_is_seen_and_typed_into(desktop: Any) -> None:
    act(desktop, "pyautogui.hotkey('ctrl', 'alt', 't')\ntime.sleep(1)")
    wait_window(desktop, "Terminal")
    shown = act(desktop, "pyautogui.write('echo \"<$((6*7))>\"; tty\\n')\ntime.sleep(0.5)")
    assert "<42>" in shown["terminal"]
    assert "/dev/pts/" in shown["terminal"]
    assert "echo" in desktop.call("terminal")


def test_sudo_asks_for_the_password(desktop: Any) -> None:
    assert run(desktop, "id -un") == "user\n"
    assert run(desktop, "echo password | sudo -S id -un") == "root\n"
    assert run(desktop, "echo password | sudo -S -u user id -un") == "user\n"
    assert run(
        desktop, "echo password | sudo -S A=b sh -c 'echo $A > /root/made'; echo password | sudo -S cat /root/made"
    )
    refused = desktop.call("run", {"command": "printf 'wrong\\nwrong\\nwrong\\n' | sudo -S id; echo $?", "shell": True})
    assert refused["stdout"].endswith(b"1\n")
    assert b"3 incorrect password attempts" in refused["stderr"]
    stranger = desktop.call("run", {"command": "echo password | sudo -S -u stranger id", "shell": True})
    assert stranger["exit_code"] == 1
    assert stranger["stderr"].endswith(b"sudo: unknown user stranger\n")
    failed = desktop.call("run", {"command": "echo password | sudo -S sh -c 'exit 7'", "shell": True})
    assert failed["exit_code"] == 7


def test_files_belong_to_the_user_and_programs_are_his(desktop: Any) -> None:
    desktop.call("put_file", {"path": "/home/user/a/b/c.txt", "data": b"hello"})
    assert run(desktop, "stat -c %U ~/a ~/a/b ~/a/b/c.txt").split() == ["user"] * 3
    desktop.call("launch", {"command": "sleep 1000 & sleep 2000", "shell": True})
    assert run(desktop, "ps -o user= -C sleep").split() == ["user", "user"]
    slow = desktop.call("run", {"command": ["sleep", "60"], "timeout_s": 0.3})
    assert slow["timed_out"]
    # What a command leaves in the background holds nobody up.
    assert run(desktop, "sleep 500 & echo started") == "started\n"


def test_the_process_that_runs_actions_comes_back(desktop: Any) -> None:
    # The brackets keep the shell's own command line from matching.
    run(desktop, "pkill -f '[p]yrunner.py'; pidwait -f '[p]yrunner.py' || true")
    assert act(desktop, "pyautogui.moveTo(10, 10)")["last_action_error"] == ""


def test_an_action_that_kills_the_process_that_runs_it_is_run_once(desktop: Any) -> None:
    seen = desktop.act([source("open('/tmp/runs', 'a').write('x')\nimport os\nos.kill(os.getppid(), 9)")])
    assert seen.error == "pyautogui: the process that runs actions was killed"
    assert run(desktop, "cat /tmp/runs") == "x"
    assert act(desktop, "pyautogui.moveTo(10, 10)")["last_action_error"] == ""


def test_another_size_of_the_screen() -> None:
    from bunshin_gym.workspace_guest import boot_workspace

    guest, _ = boot_workspace(key(1280, 720))
    try:
        assert guest.act(()).view["screenshot"].shape == (720, 1280, 3)
        assert find(guest, "frame", "").width == 1280
        with pytest.raises(ToolError, match="not an action"):
            guest.client.step("observe", {})
    finally:
        guest.close()
