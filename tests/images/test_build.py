# SPDX-License-Identifier: Apache-2.0
"""Building from Debian packages: reuse, contents, and a builder that is killed half way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.chroot import wait_until

from bunshin_gym.errors import ImageBuildError
from bunshin_gym.images import Image, ImageStore

BUILD = "import sys; from bunshin_gym.images import ImageStore; ImageStore(sys.argv[1]).build(sys.argv[2])"


def test_the_minimal_image_is_a_small_system(minimal_image: Image) -> None:
    assert minimal_image.size_bytes < 32 << 20
    assert minimal_image.ids() == (0, 0)
    script = "echo a | cat; ls /proc; id -u user; sleep 0; exec true"
    ran = subprocess.run(
        ["chroot", str(minimal_image.rootfs), "/bin/sh", "-c", script], capture_output=True, check=True
    )
    assert ran.stdout.decode().split() == ["a", "1000"]
    assert ran.stderr == b""


def test_docs_and_caches_are_left_out(browser_image: Image) -> None:
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "var/log"):
        folder = browser_image.rootfs / name
        assert not folder.is_dir() or not any(folder.iterdir()), name
    assert not any((browser_image.rootfs / "tmp").iterdir())
    assert browser_image.size_bytes < 1200 << 20


def test_a_second_build_is_reuse(store: ImageStore, browser_image: Image) -> None:
    before = (browser_image.rootfs.parent / "image.json").stat()
    assert store.build("browser") == browser_image
    assert (browser_image.rootfs.parent / "image.json").stat() == before


def test_a_killed_builder_leaves_no_process_and_no_mount(store: ImageStore, tmp_path: Path) -> None:
    definition = tmp_path / "definition" / "image.toml"
    definition.parent.mkdir()
    # Enough of a system to have its packages configured in a chroot, where things get mounted.
    definition.write_text('[debian]\nvariant = "essential"\n[start]\nargv = ["/bin/sh"]\n')
    home = tmp_path / "home"
    builder = subprocess.Popen([sys.executable, "-c", BUILD, str(home), str(definition)])
    for attempt in wait_until(LookupError, 300):
        with attempt:
            assert builder.poll() is None, "the build ended before it could be killed"
            if not any(home.glob("images/tmp-*/rootfs/var/lib/dpkg/info/*.list")):
                raise LookupError("not begun yet")
    builder.kill()
    builder.wait()
    for attempt in wait_until(LookupError, 20):
        with attempt:
            if [pid for pid in Path("/proc").glob("[0-9]*") if str(home) in _command(pid)]:
                raise LookupError("still there")
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    mine = ImageStore(home)
    assert mine.gc() == ()
    assert list(home.glob("images/tmp-*")) == []


def test_an_unknown_package_is_named(store: ImageStore, tmp_path: Path) -> None:
    definition = tmp_path / "image.toml"
    definition.write_text('[debian]\nvariant = "extract"\npackages = ["no-such-package-at-all"]\n')
    with pytest.raises(ImageBuildError, match="no-such-package-at-all"):
        ImageStore(tmp_path / "home").build(definition)
    assert list((tmp_path / "home/images").glob("tmp-*")) == []


def test_a_mirror_that_is_not_there_is_named(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = tmp_path / "image.toml"
    definition.write_text('[debian]\nvariant = "extract"\npackages = ["base-files"]\n')
    monkeypatch.setenv("BUNSHIN_MIRROR", "http://127.0.0.1:9/debian")
    with pytest.raises(ImageBuildError, match=r"127\.0\.0\.1:9"):
        ImageStore(tmp_path / "home").build(definition)


def _command(process: Path) -> str:
    try:
        return os.fsdecode((process / "cmdline").read_bytes())
    except OSError:
        return ""
