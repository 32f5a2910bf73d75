# SPDX-License-Identifier: Apache-2.0
"""What an episode leaves behind, which is nothing; what branches have in common, random numbers included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STAIN = """
async () => {
  localStorage.stain = sessionStorage.stain = document.cookie = 'stain=1';
  window.name = 'stained';
  const opened = indexedDB.open('stain', 1);
  await new Promise((done) => { opened.onsuccess = done; });
  opened.result.close();
}
"""
STAINS = """
async () => [localStorage.length, sessionStorage.length, document.cookie, window.name, history.length,
             (await indexedDB.databases()).length]
"""
LOOK = "find / -xdev -newer /run/bunshin/tool.sock -name 'stain*' 2>/dev/null; pgrep -f 'sleep 1000[0]' || true"


def test_a_reset_forgets_all_that_was_done(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    env.reset(seed=1)
    guest = env.unwrapped._guest
    clean = guest.evaluate(STAINS)
    assert guest.execute(["sh", "-c", LOOK]) == ""
    guest.evaluate(STAIN)
    script = "echo x > /root/stain; echo x > /tmp/stain; echo x > /dev/shm/stain; cp /etc/passwd /etc/stain"
    guest.execute(["sh", "-c", f"{script}; rm /etc/hostname /usr/bin/xprop; setsid sleep 10000 > /dev/null 2>&1 &"])
    env.step("new_tab()")
    env.step("goto('about:blank#stain')")
    assert guest.execute(["sh", "-c", LOOK]).count("stain") >= 3
    seen, _ = env.reset(seed=1)
    guest = env.unwrapped._guest
    assert guest.evaluate(STAINS) == clean
    assert guest.execute(["sh", "-c", LOOK]) == ""
    assert guest.execute(["ls", "/usr/bin/xprop"]) == "/usr/bin/xprop\n"
    assert guest.execute(["sh", "-c", "ls /dev/shm | grep stain || true"]) == ""
    assert len(seen["open_pages_urls"].splitlines()) == 1


DRAW = "() => [Math.random(), ...crypto.getRandomValues(new Uint32Array(4))]"


def test_random_numbers_are_the_same_in_branches_unless_new_ones_are_asked_for(make: Callable[..., Any]) -> None:
    """Math.random by the task's seed, `crypto` from a generator in Chromium's memory: keys too would be the same."""
    env = make("ClickTest").unwrapped
    env.reset(seed=1)
    env._guest.evaluate(DRAW)
    same = env.fork(2)
    drawn = [side._guest.evaluate(DRAW) for side in (env, *same)]
    assert drawn[0] == drawn[1] == drawn[2]
    different = env.fork(2, reseed=True)
    drawn = [side._guest.evaluate(DRAW) for side in (env, *different)]
    assert len({number for side in drawn for number in side}) == 15
    (deeper,) = different[0].fork(1, reseed=True)
    assert not {*deeper._guest.evaluate(DRAW)} & {*different[0]._guest.evaluate(DRAW)}
    for branch in (*same, *different, deeper):
        branch.close()
