# SPDX-License-Identifier: Apache-2.0
"""Our sites: their databases fork with the browser; scripted solutions score 1 and empty words 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.images import ImageStore
from bunshin_gym.tasks import load_task
from bunshin_gym.tasks.script import play
from bunshin_gym.tasks.sites import SITES, SiteTask, definitions

ALL = os.environ.get("BUNSHIN_ALL_TASKS") == "1"
# One of each way to be judged, or with BUNSHIN_ALL_TASKS=1 all there are.
FEW = (
    "shop.buy-with-voucher-1",
    "shop.change-price-1",
    "shop.price-of-product-1",
    "shop.write-review-1",
    "shop.open-order-1",
)
TASKS = [f"{site}.{name}" for site in SITES for name in definitions(site)]
TASKS = TASKS if ALL else [*FEW, "shop.unknown-product-1", "forum.count-of-answers-1", "forum.start-topic-1"]
WRONG = '{"task_type": "MUTATE", "status": "SUCCESS", "retrieved_data": ["nothing at all"], "error_details": null}'


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    for site in SITES:
        ImageStore().build(site)


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[BunshinEnv]:
    made = BunshinEnv(load_task(request.param))
    yield made
    made.close()


def solve(env: BunshinEnv, seen: Any, steps: list[Any]) -> list[tuple[float, bool, Any]]:
    """Plays steps; what came of each action, none of which may fail but for a slow page."""
    results = []
    for action, (after, reward, done, _, info) in play(env.step, seen, steps):
        assert after["last_action_error"] == "" or "Timeout" in after["last_action_error"], action
        results.append((reward, done, info))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("env", TASKS, indirect=True)
def test_a_solution_scores_1_and_empty_words_score_0(env: BunshinEnv) -> None:
    assert isinstance(env.task, SiteTask)
    seen, info = env.reset()
    assert info["task"] == env.task.id
    assert env.task.definition.verified["intent"] in seen["goal"]
    (idle,) = env.fork()
    try:
        assert idle.step("noop(0)")[1:3] == (0.0, False)
        assert idle.step(f"send_msg_to_user({WRONG!r})")[1:3] == (0.0, True)
    finally:
        idle.close()
    *before, (reward, done, info) = solve(env, seen, env.task.solution())
    assert (reward, done) == (1.0, True), info["reasons"]
    assert {(reward, done) for reward, done, _ in before} == {(0.0, False)}


@pytest.mark.parametrize("env", ["shop.buy-1"], indirect=True)
def test_eight_branches_buy_different_things(env: BunshinEnv) -> None:
    """Each branch's database has its own order only, the source's has none; each has the browser's session too."""
    assert isinstance(env.task, SiteTask)
    task, account = env.task, env.task.definition.account
    wanted = [name for name in definitions("shop") if name.startswith(("buy-", "add-to-cart", "price-of-product"))]
    titles = sorted({_product(name) for name in wanted} - {""})[:8]
    assert len(titles) == 8
    seen, _ = env.reset()
    branches = env.fork(8)

    def buy(branch: BunshinEnv, title: str) -> list[str]:
        steps = [
            [part.replace(_product("buy-1"), title) if isinstance(part, str) else part for part in step]
            for step in task.solution()[:-1]
        ]
        solve(branch, seen, steps)
        return task.query(branch._guest, ORDERS.format(account=account))

    try:
        with ThreadPoolExecutor(4) as pool:
            bought = list(pool.map(buy, branches, titles))
        assert bought == [[f'"{title}",1'] for title in titles]
        assert task.query(env._guest, ORDERS.format(account=account)) == []
    finally:
        for branch in branches:
            branch.close()


ORDERS = (
    "select l.title, l.quantity from order_line l join order_order o on l.order_id = o.id "
    "join auth_user u on o.user_id = u.id where u.email = '{account}' and o.number < '100101'"
)


def _product(name: str) -> str:
    """The product that a task's solution clicks on."""
    links = [step[2] for step in definitions("shop")[name].solution if step[:2] == ["click", "link"]]
    return next((link for link in links if ", " in link), "")
