# SPDX-License-Identifier: Apache-2.0
"""An env under torchrl: its specs checked, and a rollout of a torch policy.

    .venv/bin/python examples/torchrl_rollout.py

Needs the extra `torchrl` (`make frameworks`), and root.
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from tensordict.nn import TensorDictModule
from torchrl.envs import GymWrapper, check_env_specs
from torchrl.modules import OneHotCategorical, ProbabilisticActor

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.wrappers.click_elements import FEATURES, ClickElements


class Scores(torch.nn.Module):
    """A number for each element, by its features alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(len(FEATURES), 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(..., elements, features) to (..., elements); what is not there gets none."""
        return self.layers(features).squeeze(-1) - 1e9 * (1 - features[..., 0])


def make_env(task: str) -> GymWrapper:
    """The env as torchrl sees it."""
    return GymWrapper(ClickElements(BunshinEnv(task), most=8), device="cpu")


def make_policy(env: GymWrapper) -> ProbabilisticActor:
    """An untrained policy over it."""
    scores = TensorDictModule(Scores(), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(scores, in_keys=["logits"], spec=env.action_spec, distribution_class=OneHotCategorical)


def main(
    task: Annotated[str, typer.Argument(help="A task that clicks solve.")] = "miniwob.click-test-2",
    steps: Annotated[int, typer.Option(min=1, help="The most steps.")] = 5,
) -> None:
    """Checks and rolls out."""
    torch.manual_seed(0)
    env = make_env(task)
    check_env_specs(env)
    rollout = env.rollout(steps, make_policy(env))
    typer.echo(f"{rollout.batch_size[0]} steps, reward {rollout['next', 'reward'].sum().item():+.1f}")
    env.close()


if __name__ == "__main__":
    typer.run(main)
