# SPDX-License-Identifier: Apache-2.0
"""WebArena's tasks as environments, with their sites inside the workspace.

Importing this registers `bunshin/WebArena-SITE-ID-v0` and `bunshin/WebArenaVerified-SITE-ID-v0` for the task files that
are there already; `register` does it for any other. An env is made with the sites that its task needs:

    gym.make("bunshin/WebArena-shopping-118-v0", sites={"shopping": SiteImage(url=..., docker=...)})
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import registry

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.images import ImageStore
from bunshin_gym.webarena.data import SITE_NAMES, WebArenaDefinition, load_definitions, present_file, summary
from bunshin_gym.webarena.scoring import AnswerJudge
from bunshin_gym.webarena.site import SIGN_IN, SignIn, SiteImage, compose_image
from bunshin_gym.webarena.task import WebArenaTask

__all__ = [
    "SIGN_IN",
    "SITE_NAMES",
    "AnswerJudge",
    "SignIn",
    "SiteImage",
    "WebArenaDefinition",
    "WebArenaTask",
    "load_definitions",
    "make_env",
    "make_task",
    "register",
    "summary",
]


def make_task(
    task_id: int,
    *,
    sites: Mapping[str, SiteImage],
    judge: AnswerJudge | None = None,
    data: str | os.PathLike[str] | None = None,
    verified: bool = False,
    base: str = "browser",
    docker_host: str | None = None,
    home: str | None = None,
) -> WebArenaTask:
    """Returns a task, with its sites composed into an image.

    Args:
        task_id: its number in the file.
        sites: where each site comes from; those that the task needs are enough.
        judge: compares answers where the task wants a language model.
        data: the task file; None finds one.
        verified: whether to find webarena-verified's file.
        base: the image with the browser.
        docker_host: address of the docker daemon; DOCKER_HOST and the like unless given.
        home: the state directory.

    Raises:
        UsageError: there is no such task, or it is refused; the message says why.
        ImageError: a site's image is not to be had.
    """
    definitions = load_definitions(data, verified=verified)
    if task_id not in definitions:
        raise UsageError(
            f"there is no WebArena task {task_id!r}; there are {len(definitions)}, from {min(definitions)} on"
        )
    definition = definitions[task_id]
    refusals = definition.refusals(sites=frozenset(sites), judge=judge is not None)
    if refusals:
        raise UsageError(f"{definition.env_name} is refused: {'; '.join(refusals)}")
    needed = {*definition.needed_sites, *(sites[name].part_of or name for name in definition.needed_sites)}
    used = {name: site for name, site in sites.items() if name in needed}
    image = compose_image(used, base=base, store=ImageStore(home), docker_host=docker_host)
    return WebArenaTask(definition=definition, image=image.digest, sites=used, judge=judge)


def make_env(
    *,
    task_id: int,
    sites: Mapping[str, SiteImage] | None = None,
    judge: AnswerJudge | None = None,
    data: str | os.PathLike[str] | None = None,
    verified: bool = False,
    base: str = "browser",
    docker_host: str | None = None,
    home: str | None = None,
    **options: Any,
) -> BunshinEnv:
    """The env of a task; arguments as for `make_task`, all others are `BunshinEnv`'s. Raises as both do."""
    task = make_task(
        task_id,
        sites=sites or {},
        judge=judge,
        data=data,
        verified=verified,
        base=base,
        docker_host=docker_host,
        home=home,
    )
    return BunshinEnv(task, home=home, **options)


def register(data: str | os.PathLike[str] | None = None, *, verified: bool = False) -> list[str]:
    """Registers the ids of every task of a file; idempotent.

    Returns:
        The ids, in the file's order.

    Raises:
        UsageError: the file is not there, or not of either format.
    """
    ids = []
    for definition in load_definitions(data, verified=verified).values():
        env_id = f"bunshin/{definition.env_name}-v0"
        ids.append(env_id)
        if env_id in registry:
            continue
        kwargs = {"task_id": definition.task_id, "verified": definition.verified, "data": data}
        gymnasium.register(id=env_id, entry_point="bunshin_gym.webarena:make_env", kwargs=kwargs)
    return ids


def _register_present() -> None:
    for verified in (False, True):
        path: Path | None = present_file(verified=verified)
        if path is not None and path.exists():
            register(verified=verified)


_register_present()
