# SPDX-License-Identifier: Apache-2.0
"""Each branch copies the files that its source has open for writing, and its shared memory: a browser's are small.

What the browser is kept from opening it must not try again and again.
"""

from __future__ import annotations

import fnmatch
import time

from bunshin_gym.images import ImageStore
from bunshin_gym.toolclient import ToolClient
from bunshin_gym.workspace import Workspace

PROFILE = "/root/.config/bunshin-chromium/Default"
DATABASES = (
    "Account Web Data",
    "Affiliation Database",
    "Cookies",
    "DIPS",
    "Favicons",
    "History",
    "Login Data",
    "Login Data For Account",
    "Network Action Predictor",
    "ServerCertificate",
    "Shortcuts",
    "Top Sites",
    "Trust Tokens",
    "Web Data",
)
EXPECTED = (
    "/dev/*",
    "/memfd:*",
    "/root/.cache/openbox/openbox.log",
    "/run/bunshin/*",
    "/tmp/.org.chromium.*",
    "/var/log/bunshin/*",
    *(f"{PROFILE}/{name}" for name in DATABASES),
    *(f"{PROFILE}/{name}-journal" for name in DATABASES),
    *(f"{PROFILE}/{name}-wal" for name in DATABASES),
    f"{PROFILE}/Cache/*",
    f"{PROFILE}/Local Storage/*",
    f"{PROFILE}/Session Storage/*",
    f"{PROFILE}/Sessions*",
    f"{PROFILE}/Site Characteristics Database/*",
)
# A line for each descriptor that can write to a regular file: size and path.
LIST = """
for fd in /proc/[0-9]*/fd/*; do
  flags=$(sed -n 's/^flags:[[:space:]]*0*//p' "${fd%/fd/*}/fdinfo/${fd##*/}" 2>/dev/null)
  case $flags in *[12]) if test -f "$fd" && size=$(stat -L -c %s "$fd"); then echo "$size $(readlink "$fd")"; fi ;; esac
done
"""

# Those of threads that have ended meanwhile are missing.
WAKES = """
awk '/^Name:/ {mine = $2 ~ /^ThreadPool/} /^voluntary_ctxt_switches:/ && mine {sum += $2} END {print sum + 0}' \\
  /proc/[0-9]*/task/*/status 2>/dev/null
"""
WINDOW_S = 1.0
PATIENCE_S = 10.0
"""Chromium gives up what it tries again and again after some twenty seconds."""
FEW_WAKES = 50
"""In a window. Chromium waits for 10 ms before it tries again."""


def test_a_browser_holds_few_files_open_for_writing() -> None:
    with (
        Workspace.start(ImageStore().get("browser"), screen=(640, 480)) as workspace,
        ToolClient(workspace.root) as tools,
    ):
        tools.wait_ready()
        tools.step("goto", {"url": "data:text/html,<title>Page</title>"})
        done = workspace.exec(["sh", "-c", LIST], timeout_s=60)
    assert done.exit_code == 0, done.stderr.decode()
    sizes = {path: int(size) for size, path in (line.split(" ", 1) for line in done.stdout.decode().splitlines())}
    on_disk = {path: size for path, size in sizes.items() if not path.startswith(("/dev/", "/memfd:"))}
    assert f"{PROFILE}/History" in on_disk
    assert [path for path in sizes if not any(fnmatch.fnmatchcase(path, one) for one in EXPECTED)] == []
    assert sum(on_disk.values()) < 2 << 20, on_disk


def test_a_browser_draws_into_memory_that_branches_share() -> None:
    with (
        Workspace.start(ImageStore().get("browser"), screen=(640, 480)) as workspace,
        ToolClient(workspace.root) as tools,
    ):
        tools.wait_ready()
        tools.step("goto", {"url": "data:text/html,<title>Page</title>"})
        done = workspace.exec(["cat", "/proc/sysvipc/shm"], timeout_s=60)
    assert done.stdout.decode().splitlines()[1:] == []


def wakes(workspace: Workspace) -> int:
    """How often threads of the browser's pool went to sleep, so far."""
    return int(workspace.exec(["sh", "-c", WAKES], timeout_s=60).stdout)


def test_a_browser_that_has_nothing_to_do_sleeps() -> None:
    with (
        Workspace.start(ImageStore().get("browser"), screen=(640, 480)) as workspace,
        ToolClient(workspace.root) as tools,
    ):
        tools.wait_ready()
        tools.step("goto", {"url": "data:text/html,<title>Page</title>"})
        deadline = time.monotonic() + PATIENCE_S
        before = wakes(workspace)
        while True:
            time.sleep(WINDOW_S)
            now = wakes(workspace)
            if now - before < FEW_WAKES:
                break
            assert time.monotonic() < deadline, f"{now - before} in the last second"
            before = now
