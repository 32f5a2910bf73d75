# SPDX-License-Identifier: Apache-2.0
"""Events as JSON lines, and as Prometheus metrics (extra `metrics`).

from bunshin_gym import telemetry
telemetry.log_json()                 # one JSON object a line, on standard error
telemetry.serve_metrics(9400)        # http://127.0.0.1:9400/metrics
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from bunshin_gym.errors import UsageError
from bunshin_gym.events import LOGGER

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["JsonFormatter", "MetricsHandler", "log_json", "serve_metrics"]

_BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the event's fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "bunshin", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_json(stream: TextIO | None = None, *, level: int = logging.INFO) -> logging.Handler:
    """Writes all that this package logs as JSON lines; returns the handler, to be taken off again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("bunshin_gym")
    logger.setLevel(level)
    logger.addHandler(handler)
    return handler


class MetricsHandler(logging.Handler):
    """Counts and times events in a Prometheus registry.

    Args:
        registry: where the metrics are; None is the client's own.

    Raises:
        UsageError: the Prometheus client is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(logging.INFO)
        try:
            from prometheus_client import REGISTRY, Counter, Histogram
        except ImportError as error:
            raise UsageError(f"{error}: pip install 'bunshin-gym[metrics]'") from error
        self._registry = registry or REGISTRY
        self._collectors: list[Any] = []

        def kept(collector: Any) -> Any:
            self._collectors.append(collector)
            return collector

        def counter(name: str, what: str) -> Any:
            return kept(Counter(f"bunshin_{name}", what, ["task"], registry=self._registry))

        def seconds(name: str, what: str) -> Any:
            whole = f"bunshin_{name}_seconds"
            return kept(Histogram(whole, what, ["task"], registry=self._registry, buckets=_BUCKETS_S))

        self._lost = counter("workspaces_lost", "Workspaces of vector envs that died or hung.")
        self._branches = counter("branches", "Branches that forks made.")
        timed = {
            "reset": {
                "total_s": seconds("reset", "A reset."),
                "branch_s": seconds("branch", "The making of a branch."),
            },
            "step": {
                "total_s": seconds("step", "A step."),
                "tool_s": seconds("tool", "The tool calls of a step."),
                "look_s": seconds("look", "The observation of a step."),
            },
            "fork": {
                "total_s": seconds("fork", "A fork."),
                "frozen_s": seconds("frozen", "A fork's source stood still."),
            },
        }
        self._timed: dict[str, dict[str, Any]] = timed
        self._counted: dict[str, Callable[[str, dict[str, Any]], None]] = {
            "fork": lambda task, fields: self._branches.labels(task).inc(fields["branches"]),
            "lost": lambda task, fields: self._lost.labels(task).inc(),
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one event."""
        fields: dict[str, Any] = getattr(record, "bunshin", {})
        task = str(fields.get("task", ""))
        for name, histogram in self._timed.get(record.msg, {}).items():
            if fields.get(name) is not None:
                histogram.labels(task).observe(fields[name])
        if record.msg in self._counted:
            self._counted[record.msg](task, fields)

    def close(self) -> None:
        """Takes its metrics out of the registry: another handler may be made for it. Idempotent."""
        while self._collectors:
            self._registry.unregister(self._collectors.pop())
        super().close()


def serve_metrics(port: int, *, registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """Serves this process's metrics on 127.0.0.1; returns what ends that, and takes them out of the registry.

    Raises:
        UsageError: the Prometheus client is not installed.
        OSError: the port is taken.
    """
    handler = MetricsHandler(registry)
    from prometheus_client import REGISTRY, start_http_server

    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry or REGISTRY)
    except OSError:
        handler.close()
        raise
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)

    def stop() -> None:
        LOGGER.removeHandler(handler)
        server.shutdown()
        server.server_close()
        thread.join()
        handler.close()

    return stop
