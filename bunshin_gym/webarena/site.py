# SPDX-License-Identifier: Apache-2.0
"""WebArena's sites inside a workspace: from docker images, under names that mean the same in every branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bunshin_gym.errors import UsageError
from bunshin_gym.images import Image, ImageStore
from bunshin_gym.images.compose import SITES_DIR, Part
from bunshin_gym.webarena.data import SITE_NAMES

__all__ = ["SIGN_IN", "SignIn", "SiteImage", "compose_image", "site_root"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """A site's form: its page, its two fields, and whose account the tasks use."""

    path: str
    name_field: str
    password_field: str
    account: str
    password: str


# As the published images of the benchmark are set up.
SIGN_IN: Final[Mapping[str, SignIn]] = {
    "shopping": SignIn(
        path="/customer/account/login/",
        name_field="login[username]",
        password_field="login[password]",
        account="emma.lopez@gmail.com",
        password="Password.123",
    ),
    "shopping_admin": SignIn(
        path="/", name_field="login[username]", password_field="login[password]", account="admin", password="admin1234"
    ),
    "reddit": SignIn(
        path="/login",
        name_field="_username",
        password_field="_password",
        account="MarvelsGrantMan136",
        password="test1234",
    ),
    "gitlab": SignIn(
        path="/users/sign_in",
        name_field="user[login]",
        password_field="user[password]",
        account="byteblaze",
        password="hello1234",
    ),
}
"""How tasks sign in, by site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteImage:
    """Where a site comes from.

    Attributes:
        url: its address in the workspace, such as `http://shopping.test:7770`; without a `/` at its end. The host name
            leads to the workspace itself, in every branch, so it never changes.
        docker: name of a docker image, pulled if the daemon does not have it.
        image: instead, the name of an image in our own store.
        part_of: instead, the site whose image serves this one too, as the shop's does its administration.
        env: what the site's environment has beside its image's.
        ready: an address that answers below 500 once it serves; `url` unless given.
        commands: run in the site's own root file system once it serves, such as one that tells it its address.
        sign_in: instead of what `SIGN_IN` says.
    """

    url: str
    docker: str = ""
    image: str = ""
    part_of: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    sign_in: SignIn | None = None


def compose_image(
    sites: Mapping[str, SiteImage], *, base: str = "browser", store: ImageStore, docker_host: str | None = None
) -> Image:
    """The image with a browser and these sites in it; made once, then found.

    Raises:
        UsageError: a site is unknown, or does not say where it comes from.
        ImageError: an image is not to be had, or cannot be started.
    """
    parts: dict[str, Part] = {}
    for name, site in sites.items():
        if name not in SITE_NAMES:
            raise UsageError(f"there is no site {name!r} in WebArena; there are {', '.join(SITE_NAMES)}")
        if sum(map(bool, (site.docker, site.image, site.part_of))) != 1:
            raise UsageError(f"site {name}: give one of docker, image and part_of")
        if site.part_of:
            if site.part_of not in sites:
                raise UsageError(f"site {name} is part of {site.part_of!r}, which is not given")
            continue
        image = store.from_docker(site.docker, base_url=docker_host) if site.docker else store.get(site.image)
        parts[name] = Part(image=image, url=site.url, env=site.env, ready=site.ready)
    return store.compose(f"webarena-{'-'.join(sorted(parts))}", store.build(base), parts)


def site_root(name: str, sites: Mapping[str, SiteImage]) -> str:
    """The site's root file system in the workspace."""
    return f"{SITES_DIR}/{sites[name].part_of or name}"
