# SPDX-License-Identifier: Apache-2.0
"""TRL's trainer over workspaces: a tiny model that was taught one call makes it, and is rewarded for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.examples import load_example

pytestmark = [
    pytest.mark.filterwarnings("ignore:::(?!bunshin_gym)"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_rollouts_are_branches_with_tools_and_rewards() -> None:
    example = load_example("trl_grpo", needs=("trl",))
    environment: Any = example.environment_class("miniwob.click-test")
    one, other = environment(), environment()
    shown = one.reset(task_seed=3)
    assert other.reset(task_seed=3) == shown
    assert len(environment.starts) == 1, "two rollouts of a seed are branches of one start"
    bid = shown.split("] button")[0].rpartition("[")[2]
    assert "no element" in other.click("999")
    one.click(bid)
    assert (one.get_reward(), other.get_reward()) == (1.0, 0.0)
    assert one.click(bid=bid) == "The task is over."
    other.click(bid)
    assert other.get_reward() == 1.0
    one._close()
    other._close()
    environment._forget()


def test_the_trainer_calls_tools_and_takes_the_reward(tmp_path: Path) -> None:
    example = load_example("trl_grpo", needs=("trl",))
    import torch

    torch.manual_seed(0)
    environment: Any = example.environment_class("miniwob.click-test", tools=("click",))
    probe = environment()
    shown = probe.reset(task_seed=0)
    bid = shown.split("] button")[0].rpartition("[")[2]
    call = f'<tool_call>\n{{"name": "click", "arguments": {{"bid": "{bid}"}}}}\n</tool_call>'
    words = example.tokenizer([shown, call] * 3)
    model = example.tiny_model(words)
    trainer = example.make_trainer(environment, model, words, folder=tmp_path, steps=1)
    teach(model, words, trainer._env_tools[None], shown, call)
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["tools/call_frequency"] > 0
    assert logs["reward"] > 0
    for rollout in [probe, *(one for pool in trainer._environment_pool.values() for one in pool)]:
        rollout._close()
    environment._forget()


def teach(model: Any, words: Any, tools: Any, shown: str, call: str) -> None:
    """Fits the model to one conversation: the prompt as the trainer renders it, and the call."""
    import torch

    prompt = [{"role": "user", "content": "Do the task by calling tools.\n" + shown}]
    text = words.apply_chat_template(
        prompt, tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    head = words(text, return_tensors="pt").input_ids
    tail = words(call + "<|im_end|>", return_tensors="pt").input_ids
    inputs = torch.cat([head, tail], dim=1)
    labels = inputs.clone()
    labels[:, : head.shape[1]] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(60):
        loss = model(inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
