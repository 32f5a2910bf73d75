# SPDX-License-Identifier: Apache-2.0
"""Judges by webarena-verified; run by the interpreter of an environment that has it, never imported by ours.

A line of JSON is a question, a line of JSON its answer:

    {"task", "response", "entries", "urls"}  ->  {"score", "status", "reasons"} or {"error"}
    {"check": task}                          ->  {} or {"error"}
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any


def main() -> None:
    """Answers until the other side hangs up."""
    # What the package prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    from webarena_verified.api import WebArenaVerified

    reader = WebArenaVerified()._reader
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = _check(question["check"]) if "check" in question else _judge(reader, question)
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the asker's to raise
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


def _check(task: dict[str, Any]) -> dict[str, Any]:
    from webarena_verified.types.task import WebArenaVerifiedTask

    WebArenaVerifiedTask.model_validate(task)
    return {}


def _judge(reader: Any, question: dict[str, Any]) -> dict[str, Any]:
    from webarena_verified.api.internal.evaluator import WebArenaVerifiedEvaluator
    from webarena_verified.types.config import WebArenaVerifiedConfig
    from webarena_verified.types.eval import TaskEvalContext
    from webarena_verified.types.task import WebArenaVerifiedTask
    from webarena_verified.types.tracing import NetworkTrace

    urls = {name: {"urls": [url]} for name, url in question["urls"].items()}
    config = WebArenaVerifiedConfig(environments=urls)
    context = TaskEvalContext(
        task=WebArenaVerifiedTask.model_validate(question["task"]),
        agent_response_raw=question["response"],
        network_trace=NetworkTrace.from_content(question["entries"]),
        config=config,
    )
    result = WebArenaVerifiedEvaluator(config=config, reader=reader).evaluate_task(context=context)
    reasons = [
        f"{part.evaluator_name}: {assertion.assertion_name}: {'; '.join(assertion.assertion_msgs or ())}"
        for part in result.evaluators_results
        for assertion in part.assertions or ()
        if not assertion.is_success
    ]
    reasons += [str(part.error_msg) for part in result.evaluators_results if part.error_msg]
    if result.error_msg:
        reasons.append(str(result.error_msg))
    return {"score": float(result.score), "status": str(result.status), "reasons": reasons}


if __name__ == "__main__":
    main()
