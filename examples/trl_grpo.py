# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer with workspaces as its environments: one rollout a branch, groups that begin alike.

    .venv/bin/python examples/trl_grpo.py --steps 2

`environment_class` makes what `environment_factory` wants: a class with `reset`, `get_reward`, and a method for each
tool that the model may call. Rollouts of one task seed are branches of one snapshot. Here the model is a tiny one with
random weights, so that nothing is downloaded: replace `tiny_model` and `tokenizer` by yours. Needs the extra `trl`
(`make frameworks`), and root.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from bunshin_gym.env_snapshot import EnvSnapshot
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.surfaces.actions import REQUIRED, Tool
from bunshin_gym.surfaces.browser import BROWSER_TOOLS
from bunshin_gym.types import ToolCall

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
SPECIAL += ["<tool_response>", "</tool_response>"]
KINDS: dict[str, type] = {"str": str, "float": float, "int": int, "bool": bool}


class Rollout:
    """One rollout's branch. Subclasses have the tools as methods."""

    task: ClassVar[str]
    starts: ClassVar[dict[int, tuple[EnvSnapshot, str]]]

    def __init__(self) -> None:
        self._env: BunshinEnv | None = None
        self._reward, self._over = 0.0, False

    def reset(self, task_seed: int, **_: Any) -> str:
        """Begins at a task seed: in a branch of the group's start, which the first of them sets up."""
        self._close()
        if task_seed not in self.starts:
            self._forget()
            with BunshinEnv(self.task) as leader:
                seen, _info = leader.reset(options={"task_seed": int(task_seed)})
                self.starts[task_seed] = (leader.snapshot(), f"{seen['goal']}\n{seen['axtree_txt']}")
        snapshot, shown = self.starts[task_seed]
        self._env, self._reward, self._over = snapshot.branch(), 0.0, False
        return shown

    def get_reward(self) -> float:
        """What the task gave in this rollout."""
        return self._reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        assert self._env is not None
        if self._over:
            return "The task is over."
        seen, reward, terminated, _, _ = self._env.step(ToolCall(name=name, args=arguments))
        self._reward += reward
        self._over = terminated
        error = seen["last_action_error"]
        return f"{error}\n{seen['axtree_txt']}" if error else str(seen["axtree_txt"])

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    @classmethod
    def _forget(cls) -> None:
        while cls.starts:
            cls.starts.popitem()[1][0].close()


def _method(tool: Tool) -> Any:
    """A tool as a method whose signature and docstring TRL can read; parameters with a default are left to it."""
    params = [param for param in tool.params if param.default is REQUIRED]

    def method(self: Rollout, *args: Any, **named: Any) -> str:
        return self._call(tool.name, {**dict(zip((param.name for param in params), args, strict=False)), **named})

    kinds = {param.name: KINDS.get(param.kind, str) for param in params}
    described = "\n".join(f"    {name}: as the page names it" for name in kinds)
    method.__name__ = tool.name
    method.__doc__ = f"{tool.summary}.\n\nArgs:\n{described}\n" if kinds else f"{tool.summary}.\n"
    method.__annotations__ = {**kinds, "return": str}
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", either),
            *(inspect.Parameter(name, either, annotation=kind) for name, kind in kinds.items()),
        ],
        return_annotation=str,
    )
    return method


def environment_class(task: str, tools: Sequence[str] = ("click", "fill")) -> type[Rollout]:
    """What `GRPOTrainer(environment_factory=...)` takes, for one task and some tools of the browser."""
    methods = {name: _method(BROWSER_TOOLS[name]) for name in tools}
    return type("Workspace", (Rollout,), {"task": task, "starts": {}, **methods})


def tokenizer(corpus: Sequence[str]) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer made of some text, with Qwen's chat template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = qwen3_chat_template
    return wrapped


def tiny_model(words: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Two layers of random weights."""
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def make_trainer(
    environment: type[Rollout], model: PreTrainedModel, words: PreTrainedTokenizerFast, *, folder: Path, steps: int
) -> GRPOTrainer:
    """Groups of four rollouts, each group of one task seed."""
    prompt = [{"role": "user", "content": "Do the task by calling tools.\n"}]
    rows = Dataset.from_list([{"prompt": prompt, "task_seed": seed} for seed in range(steps)])
    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=64,
        max_tool_calling_iterations=2,
        max_steps=steps,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        seed=0,
        chat_template_kwargs={"enable_thinking": False},
    )
    return GRPOTrainer(
        model=model, processing_class=words, args=args, train_dataset=rows, environment_factory=environment
    )


def main(
    task: Annotated[str, typer.Argument(help="Such as miniwob.click-test.")] = "miniwob.click-test",
    steps: Annotated[int, typer.Option(min=1, help="Groups to train on.")] = 2,
) -> None:
    """Trains a little, to show that all of it runs."""
    environment = environment_class(task)
    words = tokenizer([environment.__doc__ or "", *(str(tool) for tool in BROWSER_TOOLS.values())])
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(environment, tiny_model(words), words, folder=Path(scratch), steps=steps)
        trainer.train()
        for line in trainer.state.log_history:
            typer.echo({name: value for name, value in line.items() if "reward" in name or "tool" in name})
        for rollouts in trainer._environment_pool.values():
            for rollout in rollouts:
                rollout._close()
    environment._forget()


if __name__ == "__main__":
    typer.run(main)
