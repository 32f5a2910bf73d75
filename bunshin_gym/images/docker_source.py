# SPDX-License-Identifier: Apache-2.0
"""Root file systems from docker images, through the docker daemon's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bunshin_gym.errors import ImageBuildError, ImageNotFoundError
from bunshin_gym.images.archive import unpack_stream
from bunshin_gym.images.image import ImageConfig
from bunshin_gym.images.run import Report

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["DockerSource"]

_CHUNK_BYTES = 2 << 20
# What the daemon puts into each container's root, which is no part of the image.
_INJECTED = (".dockerenv",)


class DockerSource:
    """One docker image, pulled if the daemon does not hold it yet.

    Attributes:
        digest: the docker image's own ID, 64 hexadecimal digits.
        config: its environment, user, working directory, entry point and command.
    """

    def __init__(self, ref: str, *, base_url: str | None = None, report: Report) -> None:
        """Finds the image.

        Raises:
            ImageBuildError: there is no docker SDK or no daemon to talk to.
            ImageNotFoundError: neither the daemon nor its registry has the image.
        """
        self._ref = ref
        self._base_url = base_url
        with self._client() as client:
            attributes = _find(client, ref, report)
        self.digest = str(attributes["Id"]).removeprefix("sha256:")
        self.config = config_of(attributes["Config"] or {})

    def unpack(self, rootfs: Path, report: Report) -> None:
        """Writes the image's merged tree to `rootfs`, absent before.

        Raises:
            ImageBuildError: the daemon or tar failed; the helper container is gone all the same.
        """
        from docker.errors import DockerException

        try:
            with self._client() as client:
                # Never started: the command only has to be there for the API.
                container = client.containers.create(f"sha256:{self.digest}", command=["-"])
                try:
                    unpack_stream(container.export(chunk_size=_CHUNK_BYTES), rootfs, report)
                finally:
                    container.remove(v=True, force=True)
        except DockerException as error:
            raise ImageBuildError(f"docker image {self._ref}: {error}") from error
        for name in _INJECTED:
            (rootfs / name).unlink(missing_ok=True)

    @contextmanager
    def _client(self) -> Iterator[DockerClient]:
        try:
            import docker
            from docker.errors import DockerException
        except ImportError as error:
            raise ImageBuildError("the docker SDK is not installed: pip install docker") from error
        try:
            client = docker.DockerClient(self._base_url) if self._base_url else docker.from_env()
            client.ping()
        except DockerException as error:
            raise ImageBuildError(f"no docker daemon answers ({error}); start dockerd, or set DOCKER_HOST") from error
        try:
            yield client
        finally:
            client.close()


def config_of(raw: dict[str, Any]) -> ImageConfig:
    """Our start configuration from the `Config` object of docker's image inspection."""
    pairs = (entry.partition("=") for entry in raw.get("Env") or [])
    return ImageConfig(
        env={name: value for name, _, value in pairs},
        argv=(*(raw.get("Entrypoint") or ()), *(raw.get("Cmd") or ())),
        user=raw.get("User") or "root",
        workdir=raw.get("WorkingDir") or "/",
    ).with_defaults()


def _find(client: DockerClient, ref: str, report: Report) -> dict[str, Any]:
    from docker.errors import APIError, ImageNotFound, NotFound

    try:
        return dict(client.images.get(ref).attrs)
    except ImageNotFound:
        report(f"pulling {ref}")
    try:
        return dict(client.images.pull(ref).attrs)
    except (NotFound, ImageNotFound) as error:
        raise ImageNotFoundError(f"docker image {ref}: {error.explanation}") from error
    except APIError as error:
        raise ImageBuildError(f"docker image {ref}: {error.explanation}") from error
