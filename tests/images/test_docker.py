# SPDX-License-Identifier: Apache-2.0
"""Docker images by name, against a real daemon."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from bunshin_gym.errors import ImageBuildError, ImageNotFoundError
from bunshin_gym.images import Image, ImageStore
from bunshin_gym.images.archive import tree_digest

# The SDK leaves its socket to the collector when it cannot connect, or a stream is not read to its end.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .*socket:ResourceWarning")

CHANGES = [
    'ENV GREETING="hello world"',
    "USER user",
    "WORKDIR /srv",
    'ENTRYPOINT ["/bin/sh", "-c"]',
    'CMD ["id; pwd"]',
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Lets what the SDK left be collected here, not in somebody else's test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def imported(docker_daemon: str, minimal_image: Image) -> str:
    """The minimal image as a docker image, without any registry."""
    changes = [word for change in CHANGES for word in ("--change", change)]
    argv = ["docker", "--host", docker_daemon, "import", *changes, "-", "sample:1"]
    pack = ["tar", "-C", str(minimal_image.rootfs), "-c", "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, check=True, capture_output=True)
    assert tar.returncode == 0
    return "sample:1"


def test_tree_and_configuration_are_taken(
    docker_daemon: str, imported: str, minimal_image: Image, tmp_path: Path
) -> None:
    store = ImageStore(tmp_path)
    image = store.from_docker(imported, base_url=docker_daemon)
    assert image.name == "sample:1"
    assert image.argv == ("/bin/sh", "-c", "id; pwd")
    assert image.env["GREETING"] == "hello world"
    assert (image.user, image.ids(), image.workdir) == ("user", (1000, 1000), "/srv")
    for name in ("bin", "lib", "usr/bin"):
        assert tree_digest(image.rootfs / name) == tree_digest(minimal_image.rootfs / name), name
    assert not (image.rootfs / ".dockerenv").exists()
    with contextlib.closing(docker.DockerClient(docker_daemon)) as client:
        assert image.digest == client.images.get(imported).id.removeprefix("sha256:")
        assert client.containers.list(all=True) == []
    assert store.from_docker(imported, base_url=docker_daemon) == image
    assert store.get("sample:1") == image
    ran = subprocess.run(
        ["chroot", str(image.rootfs), *image.argv[:2], "id -u; cat /etc/passwd"], capture_output=True, check=True
    )
    assert ran.stdout.startswith(b"0\nroot:")


def test_layers_are_merged_and_deletions_count(docker_daemon: str, imported: str, tmp_path: Path) -> None:
    with contextlib.closing(docker.DockerClient(docker_daemon)) as client:
        container = client.containers.create(imported, command=["-"])
        try:
            container.put_archive("/", _tar(tmp_path, {"srv/new": b"1", "etc/hosts2": b"2"}))
            container.commit("sample", "2")
        finally:
            container.remove()
    image = ImageStore(tmp_path / "home").from_docker("sample:2", base_url=docker_daemon, name="second")
    assert (image.rootfs / "srv/new").read_bytes() == b"1"
    assert (image.rootfs / "bin/busybox").exists()
    assert image.name == "second"


def test_what_docker_does_not_have_is_named(docker_daemon: str, tmp_path: Path) -> None:
    with pytest.raises((ImageNotFoundError, ImageBuildError), match="localhost:1/no/such"):
        ImageStore(tmp_path).from_docker("localhost:1/no/such", base_url=docker_daemon)


def test_no_daemon_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="start dockerd"):
        ImageStore(tmp_path).from_docker("x", base_url=f"unix://{tmp_path}/none.sock")


def test_a_helper_container_is_gone_also_after_a_failure(
    docker_daemon: str, imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bunshin_gym.images import docker_source

    def broken(*_: object) -> None:
        raise ImageBuildError("disk full")

    monkeypatch.setattr(docker_source, "unpack_stream", broken)
    store = ImageStore(tmp_path)
    with pytest.raises(ImageBuildError, match="disk full"):
        store.from_docker(imported, base_url=docker_daemon)
    with contextlib.closing(docker.DockerClient(docker_daemon)) as client:
        assert client.containers.list(all=True) == []
    assert store.list() == []


def _tar(folder: Path, files: dict[str, bytes]) -> bytes:
    for name, data in files.items():
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return subprocess.run(
        ["tar", "-C", str(folder / "tree"), "-c", *os.listdir(folder / "tree")], capture_output=True, check=True
    ).stdout
