# SPDX-License-Identifier: Apache-2.0
"""An observation is taken when the page has come to rest: what is seen does not depend on how busy the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from support.inside import IN_BACKGROUND

from bunshin_gym.toolclient import ToolClient

LINK = "<body style='margin:0'><a href='/slow' style='display:block;width:400px;height:400px'>on</a>"
ENTER_SLOWLY = """
document.body.innerHTML = '<input id=box style="width:600px;height:300px;background:rgb(0,0,255)">';
box.style.transition = 'background 300ms';
box.onfocus = () => { box.style.background = 'rgb(255,0,0)'; };
"""

# Serves inside the workspace as long as that lasts: a page with a link, and one whose title comes well before the rest.
SERVER = f"""{IN_BACKGROUND}
import http.server, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if self.path != "/slow":
            self.wfile.write(b\"\"\"{LINK}\"\"\")
            return
        self.wfile.write(b"<!doctype html><title>Slow</title>")
        self.wfile.flush()
        time.sleep(3)
        self.wfile.write(b"<body style='background:rgb(0,128,0)'><button>There</button>")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
in_background(server.server_port)
server.serve_forever()
"""


@pytest.fixture
def site(tools: ToolClient) -> str:
    done = tools.shell(["/usr/bin/python3", "-c", SERVER])
    return f"http://127.0.0.1:{int(done['stdout'])}"


@pytest.fixture
def busy() -> Iterator[None]:
    """A machine with three programs more on each core."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_a_slow_page_is_seen_whole(tools: ToolClient, site: str) -> None:
    tools.step("goto", {"url": site + "/"})
    seen = tools.step("mouse_click", {"x": 200, "y": 200})
    assert seen["url"] == site + "/slow"
    assert "button 'There'" in seen["axtree_txt"]
    assert (seen["screenshot"][700, 1200] == [0, 128, 0]).all()


def test_transitions_end_before_the_picture(tools: ToolClient) -> None:
    tools.evaluate(f"() => {{ {ENTER_SLOWLY} }}")
    seen = tools.step("mouse_click", {"x": 300, "y": 150})
    assert (seen["screenshot"][200, 500] == [255, 0, 0]).all()


@pytest.mark.usefixtures("busy")
def test_on_a_busy_machine_the_picture_is_no_older(tools: ToolClient) -> None:
    for n in range(10):
        color = [(n * 53) % 256, (n * 101) % 256, (n * 197) % 256]
        tools.evaluate(
            """c => { document.body.innerHTML = '<p>word</p>'.repeat(2000);
                      document.body.style.background = `rgb(${c})`; }""",
            color,
        )
        shot = tools.observe(tree=False)["screenshot"]
        assert (shot[5, 1200] == np.array(color)).all(), f"round {n}: {shot[5, 1200]} instead of {color}"
