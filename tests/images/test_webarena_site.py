# SPDX-License-Identifier: Apache-2.0
"""WebArena's tasks on a site of ours that comes as a docker image and runs inside the workspace."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from support import need
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.images import Image, ImageStore
from bunshin_gym.paths import criu_path
from bunshin_gym.webarena import SITE_NAMES, SignIn, SiteImage, load_definitions, make_env, register, summary
from bunshin_gym.webarena.data import find_file

# The SDK leaves its socket to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .*socket:ResourceWarning")

URL = "http://corner.test:7770"
FORM = SignIn(path="/login.html", name_field="who", password_field="word", account="ann", password="secret")
LOGIN = '<form action="/cgi-bin/login" method="post"><input name="who"><input name="word" type="password"></form>'
HOME = """<title>Corner</title><h1>Corner shop</h1>
<a href="/cgi-bin/orders">Orders</a> <a href="/tea.html?size=big">Tea</a>
<form action="/cgi-bin/buy" method="post"><input name="what" aria-label="What"><button>Buy</button></form>"""
LOGIN_SCRIPT = """#!/bin/sh
body=$(head -c "$CONTENT_LENGTH")
if [ "$body" = 'who=ann&word=secret' ]; then
  printf 'Content-Type: text/html\\r\\nSet-Cookie: user=ann; Path=/\\r\\n\\r\\n<p>welcome</p>'
else
  printf 'Content-Type: text/html\\r\\n\\r\\n%s' '<form><input name="who"></form>'
fi
"""
BUY_SCRIPT = """#!/bin/sh
body=$(head -c "$CONTENT_LENGTH")
echo "${body#what=} for ${HTTP_COOKIE#user=}" >>/srv/orders
printf 'Status: 302 Found\\r\\nLocation: /cgi-bin/orders\\r\\n\\r\\n'
"""
# A process of its own asks /proc and /dev: a real site does both.
ORDERS_SCRIPT = """#!/bin/sh
printf 'Content-Type: text/html\\r\\n\\r\\n<title>Orders</title><ul id="orders">'
sed 's/.*/<li>&<\\/li>/' /srv/orders 2>/dev/null
printf '</ul><p id="self">%s</p>' "$(readlink /proc/self/exe)"
"""
TASK = {
    "sites": ["shopping"],
    "require_login": True,
    "storage_state": "./.auth/shopping_state.json",
    "start_url": "__SHOPPING__/",
    "geolocation": None,
    "intent_template": "{{what}}",
    "instantiation_dict": {"what": ""},
    "intent": "Say which page of __SHOPPING__ lists orders",
    "require_reset": False,
    "intent_template_id": 1,
}


def _judged(task_id: int, kinds: list[str], **more: Any) -> dict[str, Any]:
    judged = {"reference_answers": None, "reference_url": "", "program_html": [], **more}
    return {**TASK, "task_id": task_id, "eval": {"eval_types": kinds, **judged}}


ORDERED = {
    "url": "__SHOPPING__/cgi-bin/orders",
    "locator": "document.querySelector('#orders').outerText",
    "required_contents": {"must_include": ["coffee |OR| tea", "for ann"]},
}
TASKS = [
    _judged(1, ["string_match"], reference_answers={"must_include": ["orders", "__SHOPPING__"]}),
    _judged(2, ["url_match"], reference_url="__SHOPPING__/tea.html?size=big", url_note="GOLD in PRED"),
    _judged(3, ["program_html"], program_html=[ORDERED]),
    _judged(
        4,
        ["program_html", "string_match"],
        reference_answers={"exact_match": "done"},
        program_html=[
            {"url": "last", "locator": "", "required_contents": {"must_include": ["big tea"]}},
            {
                "url": "func:reddit_get_post_url('__last_url__')",
                "locator": "document.title",
                "required_contents": {"exact_match": "Tea"},
            },
        ],
    ),
    _judged(5, ["string_match"], reference_answers={"fuzzy_match": ["a nice page"]}),
    _judged(6, ["string_match"], reference_answers={"fuzzy_match": "N/A"}, string_note="there is no such page"),
]


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    need(criu_path().exists(), "our CRIU is not built: make criu")
    yield
    from bunshin_gym.bases import shared_bases

    shared_bases().close()
    gc.collect()
    # Each docker import is another image: they would pile up.
    store = ImageStore()
    for image in store.list():
        if image.name in ("corner:1", "webarena-shopping"):
            store.remove(image.digest)


@pytest.fixture(scope="module")
def site(docker_daemon: str, minimal_image: Image, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteImage]:
    """The site as a docker image, made without any registry."""
    root = tmp_path_factory.mktemp("site") / "root"
    subprocess.run(["cp", "--archive", str(minimal_image.rootfs), str(root)], check=True)
    pages = {"index.html": HOME, "login.html": LOGIN, "tea.html": "<title>Tea</title><p>A big tea</p>"}
    scripts = {"login": LOGIN_SCRIPT, "buy": BUY_SCRIPT, "orders": ORDERS_SCRIPT}
    for name, text in {**pages, **{f"cgi-bin/{name}": text for name, text in scripts.items()}}.items():
        path = root / "www" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (root / "srv").mkdir(exist_ok=True)
    command = json.dumps(["/bin/busybox", "httpd", "-f", "-p", "7770", "-h", "/www"])
    argv = ["docker", "--host", docker_daemon, "import", "--change", f"CMD {command}", "-", "corner:1"]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, check=True, capture_output=True)
    shutil.rmtree(root)
    commands = (("/bin/sh", "-c", "echo stock for nobody >/srv/orders"),)
    return {"shopping": SiteImage(url=URL, docker="corner:1", sign_in=FORM, commands=commands)}


@pytest.fixture
def make(site: dict[str, SiteImage], docker_daemon: str, tmp_path: Path) -> Iterator[Callable[..., BunshinEnv]]:
    file, made = tmp_path / "tasks.json", []
    file.write_text(json.dumps(TASKS))

    def make_one(task_id: int, **more: Any) -> BunshinEnv:
        env = make_env(task_id=task_id, data=file, sites=site, docker_host=docker_daemon, **more)
        made.append(env)
        return env

    yield make_one
    for env in made:
        env.close()


def bid(seen: dict[str, Any], what: str) -> str:
    """The id of the first element of that kind and name."""
    line = next(line for line in seen["axtree_txt"].splitlines() if f"] {what}" in line)
    return line.strip()[1:].partition("]")[0]


def test_answers_and_addresses(make: Callable[..., BunshinEnv]) -> None:
    env = make(1)
    seen, _ = env.reset()
    assert seen["goal"] == f"Say which page of {URL} lists orders"
    assert seen["url"] == f"{URL}/"
    (other,) = env.fork()
    assert env.step(f"send_msg_to_user('the page {URL}/cgi-bin/Orders')")[1:3] == (1.0, True)
    assert other.step("send_msg_to_user('the page of orders')")[1:3] == (0.0, True)
    other.close()
    env = make(2)
    seen, _ = env.reset()
    (other,) = env.fork()
    assert env.step(f"click('{bid(seen, 'link')}')")[1:3] == (0.0, False)
    assert env.step("send_msg_to_user('done')")[1:3] == (0.0, True)
    other.step(f"goto('{URL}/tea.html?size=big&more=1')")
    assert other.step("send_msg_to_user('done')")[1:3] == (1.0, True)
    other.close()


def arrived(env: BunshinEnv, url: str) -> dict[str, Any]:
    """What is seen at a page that an action leads to."""
    for attempt in Retrying(stop=stop_after_delay(60), retry=retry_if_exception_type(AssertionError), reraise=True):
        with attempt:
            seen, *_ = env.step("noop(50)")
            assert seen["url"] == url
    return seen


def test_each_branch_has_its_own_orders(make: Callable[..., BunshinEnv]) -> None:
    """The site's files fork with the browser; its name leads to the branch's own site; the session is kept."""
    env = make(3)
    seen, _ = env.reset()
    branches = env.fork(3)
    try:
        for branch, what in zip(branches, ("tea", "coffee", "milk"), strict=True):
            branch.step(f"fill('{bid(seen, 'textbox')}', '{what}')")
            branch.step(f"click('{bid(seen, 'button')}')")
            after = arrived(branch, f"{URL}/cgi-bin/orders")
            assert f"{what} for ann" in after["axtree_txt"]
            assert "stock for nobody" in after["axtree_txt"]
            assert "/bin/busybox" in after["axtree_txt"]
        rewards = [branch.step("send_msg_to_user('done')")[1] for branch in branches]
        assert rewards == [1.0, 1.0, 0.0]
        after, *_ = env.step(f"goto('{URL}/cgi-bin/orders')")
        assert "stock for nobody" in after["axtree_txt"]
        assert "for ann" not in after["axtree_txt"]
    finally:
        for branch in branches:
            branch.close()


def test_pages_and_helpers(make: Callable[..., BunshinEnv]) -> None:
    env = make(4)
    env.reset()
    env.step(f"goto('{URL}/tea.html')")
    (other,) = env.fork()
    assert env.step("send_msg_to_user('\"Done\"')")[1:3] == (1.0, True)
    assert other.step("send_msg_to_user('not yet')")[1:3] == (0.0, True)
    other.close()


def test_a_language_model_is_asked_only_where_there_is_one(make: Callable[..., BunshinEnv]) -> None:
    with pytest.raises(UsageError, match="give a judge"):
        make(5)
    asked = []

    def judge(*, kind: str, intent: str, reference: str, answer: str) -> float:
        asked.append((kind, reference, answer))
        return float("nice" in answer)

    env = make(5, judge=judge)
    env.reset()
    assert env.step("send_msg_to_user('Nice one')")[1] == 1.0
    env = make(6, judge=judge)
    env.reset()
    (other,) = env.fork()
    assert env.step("report_infeasible('no page')")[1] == 1.0
    assert other.step("send_msg_to_user('here it is')")[1] == 0.0
    other.close()
    assert asked == [("fuzzy", "a nice page", "nice one"), ("unachievable", "there is no such page", "here it is")]


@pytest.mark.parametrize(("verified", "judged"), [(False, 118), (True, 0)])
def test_all_812_tasks_load_and_are_classified(verified: bool, judged: int) -> None:
    """Of the files as they are published, in the environment of the judge."""
    definitions = load_definitions(find_file(verified=verified))
    assert sorted(definitions) == list(range(812))
    everywhere = summary(definitions, sites=frozenset(SITE_NAMES), judge=False)
    assert everywhere["runnable"] == 812 - judged
    assert summary(definitions, sites=frozenset(SITE_NAMES), judge=True) == {"runnable": 812}
    shop = summary(definitions, sites=frozenset(["shopping"]), judge=True)
    assert shop["runnable"] == 187
    assert shop["it needs the site map"] == 128
    ids = register(verified=verified)
    assert len(set(ids)) == 812
    with pytest.raises(UsageError, match="it needs the site shopping"):
        gymnasium.make(next(env_id for env_id in ids if env_id.endswith("shopping-118-v0")))
