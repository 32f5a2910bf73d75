# SPDX-License-Identifier: Apache-2.0
"""The store: reuse, names, removal, and what happens when builders meet, fail or die."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bunshin_gym.errors import ImageBuildError, ImageError, ImageNotFoundError
from bunshin_gym.images import ImageConfig, ImageStore
from bunshin_gym.images.docker_source import config_of
from bunshin_gym.images.image import Image


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:71:72::/app:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nweb:x:73:\n")
    (root / "data").write_bytes(bytes(range(256)))
    os.link(root / "data", root / "same-data")
    (root / "link").symlink_to("/etc/passwd")
    return root


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "home")


def leftovers(store_home: Path) -> list[str]:
    return [p.name for p in (store_home / "images").iterdir() if p.name.startswith("tmp-")]


def test_a_folder_is_copied_with_links_and_attributes(store: ImageStore, tree: Path) -> None:
    os.setxattr(tree / "data", "user.note", b"kept")
    image = store.from_folder(tree, name="sample", config=ImageConfig(argv=("/bin/app",), user="app:web"))
    assert (image.rootfs / "data").read_bytes() == bytes(range(256))
    assert (image.rootfs / "data").stat().st_ino == (image.rootfs / "same-data").stat().st_ino
    assert os.readlink(image.rootfs / "link") == "/etc/passwd"
    assert os.getxattr(image.rootfs / "data", "user.note") == b"kept"
    assert image.ids() == (71, 73)
    assert image.env["PATH"]
    assert image.size_bytes > 0
    assert store.get("sample") == image == store.get(image.digest[:12])
    assert (tree / "data").exists()


def test_the_same_content_is_stored_once_and_other_content_apart(store: ImageStore, tree: Path) -> None:
    first = store.from_folder(tree, name="one")
    again = store.from_folder(tree, name="two")
    assert again.digest == first.digest
    assert len(store.list()) == 1
    (tree / "data").write_bytes(b"new")
    changed = store.from_folder(tree, name="one")
    assert changed.digest != first.digest
    assert store.get("one").digest == changed.digest
    assert store.get("two").digest == first.digest
    restarted = store.from_folder(tree, name="one", config=ImageConfig(argv=("/bin/true",)))
    assert restarted.digest != changed.digest


@pytest.mark.parametrize("user", ["nosuch", "app:nosuch"])
def test_an_unknown_user_is_named(store: ImageStore, tree: Path, user: str) -> None:
    image = store.from_folder(tree, config=ImageConfig(user=user))
    with pytest.raises(ImageError, match="nosuch"):
        image.ids()


def test_numeric_users_need_no_account(store: ImageStore, tree: Path) -> None:
    assert store.from_folder(tree, config=ImageConfig(user="4711")).ids() == (4711, 0)
    assert store.from_folder(tree, config=ImageConfig(user="71")).ids() == (71, 72)
    assert store.from_folder(tree, config=ImageConfig(user="4711:12")).ids() == (4711, 12)


def test_a_used_image_is_not_removed(store: ImageStore, tree: Path, tmp_path: Path) -> None:
    image = store.from_folder(tree, name="used")
    state = tmp_path / "home" / "workspaces" / "w1" / "state"
    state.parent.mkdir(parents=True)
    state.write_text(f"layer={image.rootfs}\n")
    with pytest.raises(ImageError, match="in use"):
        store.remove("used")
    assert store.get("used").rootfs.is_dir()
    shutil.rmtree(state.parent)
    store.remove("used")
    assert not image.rootfs.exists()
    with pytest.raises(ImageNotFoundError, match="bunshin image build used"):
        store.get("used")


def test_a_held_image_is_not_removed(store: ImageStore, tree: Path) -> None:
    image = store.from_folder(tree, name="held")
    with store.hold(image), pytest.raises(ImageError, match="in use"):
        store.remove("held")
    store.remove("held")
    with pytest.raises(ImageNotFoundError), store.hold(image):
        pass


def test_gc_removes_what_lost_its_name_and_what_dead_builders_left(
    store: ImageStore, tree: Path, tmp_path: Path
) -> None:
    old = store.from_folder(tree, name="sample")
    (tree / "data").write_bytes(b"new")
    new = store.from_folder(tree, name="sample")
    (tmp_path / "home" / "images" / f"tmp-{'a' * 64}-dead" / "rootfs").mkdir(parents=True)
    assert store.gc() == (old.digest,)
    assert [image.digest for image in store.list()] == [new.digest]
    assert leftovers(tmp_path / "home") == []
    assert store.gc() == ()
    locks = {path.stem for path in (tmp_path / "home" / "images").glob("*.lock")}
    assert locks == {"index", new.digest}


def test_a_failed_build_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"not a tar archive" * 100)
    with pytest.raises(ImageBuildError, match="tar"):
        store.from_tarball(bad, name="bad")
    assert store.list() == []
    assert leftovers(tmp_path / "home") == []


def test_two_builders_of_one_image_build_it_once(
    store: ImageStore, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bunshin_gym.images import archive

    builds: list[Path] = []
    meet = threading.Barrier(2)
    real = archive.copy_tree

    def counted(source: Path, rootfs: Path, report: object) -> None:
        builds.append(rootfs)
        real(source, rootfs, report)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "copy_tree", counted)
    images: list[Image] = []

    def build(name: str) -> None:
        meet.wait()
        images.append(store.from_folder(tree, name=name))

    threads = [threading.Thread(target=build, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len({image.digest for image in images}) == 1
    assert store.get("one") == store.get("two")


STUCK_BUILDER = """
import sys, threading
from bunshin_gym.images import ImageStore, archive

def stuck(source, rootfs, report):
    rootfs.mkdir()
    (rootfs / "half").write_text("not all of it")
    print("building", flush=True)
    threading.Event().wait()

archive.copy_tree = stuck
ImageStore(sys.argv[1]).from_folder(sys.argv[2], name="sample")
"""


def test_a_killed_builder_holds_up_nobody_and_leaves_nothing(store: ImageStore, tree: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    argv = [sys.executable, "-c", STUCK_BUILDER, str(home), str(tree)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
        assert len(leftovers(home)) == 1
        assert store.gc() == (), "a build that goes on is not garbage"
        assert len(leftovers(home)) == 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.from_folder, tree, name="sample")
            builder.kill()
            image = waiting.result(timeout=30)
    assert not (image.rootfs / "half").exists()
    assert (image.rootfs / "data").exists()
    assert leftovers(home) == []


def test_a_damaged_store_says_so(store: ImageStore, tree: Path, tmp_path: Path) -> None:
    image = store.from_folder(tree, name="sample")
    config = image.rootfs.parent / "image.json"
    record = json.loads(config.read_text())
    config.write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(ImageError, match="format 99"):
        store.get("sample")
    config.write_text("{")
    with pytest.raises(ImageError, match=r"image\.json"):
        store.get("sample")


def test_the_store_may_not_be_copied_into_itself(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "home" / "images").mkdir(parents=True)
    with pytest.raises(ImageBuildError, match="holds the image store"):
        store.from_folder(tmp_path, name="loop")


def test_docker_configuration_becomes_ours() -> None:
    config = config_of(
        {
            "Env": ["A=1", "EQ=a=b", "EMPTY="],
            "Entrypoint": ["/entry"],
            "Cmd": ["--flag"],
            "User": "app:web",
            "WorkingDir": "/srv",
        }
    )
    assert config.argv == ("/entry", "--flag")
    assert (config.env["A"], config.env["EQ"], config.env["EMPTY"]) == ("1", "a=b", "")
    assert (config.user, config.workdir) == ("app:web", "/srv")
    bare = config_of({"Env": None, "Entrypoint": None, "Cmd": None, "User": "", "WorkingDir": ""})
    assert (bare.argv, bare.user, bare.workdir) == ((), "root", "/")
    assert "PATH" in bare.env


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: needs root")
def test_what_is_mounted_inside_is_never_removed(store: ImageStore, tree: Path, tmp_path: Path) -> None:
    old = store.from_folder(tree, name="sample")
    (tree / "data").write_bytes(b"new")
    store.from_folder(tree, name="sample")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    stuck = tmp_path / "home" / "images" / f"tmp-{old.digest}-dead"
    stuck.mkdir()
    subprocess.run(["mount", "--bind", str(precious), str(stuck)], check=True)
    try:
        with pytest.raises(ImageError, match="mount point"):
            store.gc()
    finally:
        subprocess.run(["umount", str(stuck)], check=True)
    assert (precious / "file").read_text() == "kept"
