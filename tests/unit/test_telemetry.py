# SPDX-License-Identifier: Apache-2.0
"""Events as JSON lines and as metrics."""

from __future__ import annotations

import io
import json
import logging
import socket
from typing import Any

import httpx
import pytest
from fake_guest import FakeTask
from prometheus_client import CollectorRegistry

from bunshin_gym import telemetry
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.events import LOGGER
from bunshin_gym.vector import BunshinVectorEnv

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


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


def test_nothing_is_said_unless_somebody_asks(pool: Any) -> None:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    episode(pool)
    assert heard == []
    LOGGER.setLevel(logging.INFO)
    episode(pool)
    assert [record.getMessage() for record in heard] == ["reset", "step", "fork"]


def test_metrics_are_served(pool: Any) -> None:
    registry = CollectorRegistry()
    stop = telemetry.serve_metrics(0, registry=registry)
    try:
        episode(pool)
        envs = BunshinVectorEnv(2, task=FakeTask(), bases=pool)
        envs.reset(seed=1)
        envs.step(["keyboard_type('die')", "noop(0)"])
        envs.close()
        values = {
            name: registry.get_sample_value(f"bunshin_{name}", {"task": "fake.typing"})
            for name in ("reset_seconds_count", "step_seconds_count", "branches_total", "frozen_seconds_sum")
        }
        lost = registry.get_sample_value("bunshin_workspaces_lost_total", {"task": "fake.typing"})
    finally:
        stop()
    assert values == {
        "reset_seconds_count": 3,
        "step_seconds_count": 2,
        "branches_total": 3,
        "frozen_seconds_sum": 5e-9,
    }
    assert lost == 1


def test_a_port_that_is_taken_may_be_tried_again_elsewhere(pool: Any) -> None:
    registry = CollectorRegistry()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        telemetry.serve_metrics(taken.getsockname()[1], registry=registry)
    for _ in range(2):
        stop = telemetry.serve_metrics(0, registry=registry)
        episode(pool)
        assert registry.get_sample_value("bunshin_reset_seconds_count", {"task": "fake.typing"}) == 1
        stop()
        assert list(registry.collect()) == []


def test_the_endpoint_answers_on_loopback(pool: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = telemetry.serve_metrics(port, registry=CollectorRegistry())
    try:
        episode(pool)
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        stop()
    assert 'bunshin_step_seconds_bucket{le="60.0",task="fake.typing"} 1.0' in text
