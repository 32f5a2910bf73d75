# SPDX-License-Identifier: Apache-2.0
"""Events as JSON lines and as metrics."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_guest import FakeMachine, FakeTask
from prometheus_client import CollectorRegistry

from bunshin_gym import telemetry
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.events import LOGGER, emit
from bunshin_gym.vector import BunshinVectorEnv


@pytest.fixture
def pool() -> Iterator[Any]:
    machine = FakeMachine()
    pool = machine.pool()
    yield pool
    pool.close()
    assert machine.guests == 0


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger("bunshin_gym"), LOGGER]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers


def episode(pool: Any) -> None:
    env = BunshinEnv(FakeTask(), bases=pool)
    env.reset(seed=1)
    env.step("keyboard_type('x')")
    for branch in env.fork(3):
        branch.close()
    env.close()


def test_every_event_is_a_line(pool: Any) -> None:
    stream = io.StringIO()
    telemetry.log_json(stream)
    episode(pool)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["reset", "step", "fork"]
    assert all(line["task"] == "fake.typing" and line["total_s"] >= 0 for line in lines)
    assert lines[1]["tool_s"] == 1e-6
    assert lines[2]["branches"] == 3


def test_errors_have_their_traceback() -> None:
    stream = io.StringIO()
    telemetry.log_json(stream)
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("bunshin_gym.vector").exception("it broke")
    line = json.loads(stream.getvalue())
    assert line["level"] == "ERROR"
    assert "ValueError: odd" in line["traceback"]


def test_nothing_is_made_while_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    LOGGER.setLevel(logging.WARNING)
    emit("step", total_s=1.0)
    assert caplog.records == []


def test_metrics_are_served(pool: Any) -> None:
    registry = CollectorRegistry()
    stop = telemetry.serve_metrics(0, registry=registry)
    try:
        episode(pool)
        envs = BunshinVectorEnv(2, task=FakeTask(), bases=pool)
        envs.reset(seed=1)
        envs.step(["keyboard_type('die')", "noop(0)"])
        envs.close()
    finally:
        stop()

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"task": "fake.typing"})

    assert value("bunshin_reset_seconds_count") == 3
    assert value("bunshin_step_seconds_count") == 2
    assert value("bunshin_branches_total") == 3
    assert value("bunshin_frozen_seconds_sum") == 5e-9
    assert value("bunshin_workspaces_lost_total") == 1


def test_the_endpoint_answers_on_loopback(pool: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = telemetry.serve_metrics(port, registry=CollectorRegistry())
    try:
        episode(pool)
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        stop()
    assert 'bunshin_step_seconds_bucket{le="60.0",task="fake.typing"} 1.0' in text
