# SPDX-License-Identifier: Apache-2.0
"""Image definitions: what is read, what is refused, and what their digest depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bunshin_gym.errors import ImageError, ImageNotFoundError
from bunshin_gym.images import find_definition, iter_definitions

GOOD = """
[debian]
packages = ["busybox-static"]
[python]
packages = ["msgpack==1.2.4"]
[[files]]
source = "etc/motd"
target = "/etc/motd"
mode = "0600"
[start]
argv = ["/bin/sh"]
[start.env]
HOME = "/root"
[start.services]
tool = "/run/tool.sock"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "sample"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "motd").write_text("hello\n")
    (root / "image.toml").write_text(GOOD)
    return root


def test_a_definition_is_read_from_its_folder(folder: Path) -> None:
    definition = find_definition(folder)
    assert definition.name == "sample"
    assert definition.packages == ("busybox-static",)
    assert definition.files[0].mode == 0o600
    assert definition.config.argv == ("/bin/sh",)
    assert definition.config.env["HOME"] == "/root"
    assert "/usr/bin" in definition.config.env["PATH"]
    assert definition.config.services == {"tool": "/run/tool.sock"}


def test_the_digest_follows_meaning_not_place(folder: Path, tmp_path: Path) -> None:
    before = find_definition(folder).digest()
    elsewhere = tmp_path / "other" / "sample"
    elsewhere.parent.mkdir()
    folder.rename(elsewhere)
    assert find_definition(elsewhere).digest() == before
    (elsewhere / "image.toml").write_text("# a comment\n" + GOOD)
    assert find_definition(elsewhere).digest() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "etc" / "motd").write_text("other\n"),
        lambda root: (root / "etc" / "motd").chmod(0o755),
        lambda root: (root / "image.toml").write_text(GOOD.replace("busybox-static", "bash")),
        lambda root: (root / "image.toml").write_text(GOOD.replace('HOME = "/root"', 'HOME = "/"')),
    ],
    ids=["content", "mode", "package", "environment"],
)
def test_the_digest_changes_with_all_that_matters(folder: Path, change: object) -> None:
    before = find_definition(folder).digest()
    change(folder)  # type: ignore[operator]
    assert find_definition(folder).digest() != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[debian]", "[debain]", "unknown keys: debain"),
        ('["busybox-static"]', '"busybox-static"', "packages must be a list"),
        ("msgpack==1.2.4", "msgpack>=1", "pin it"),
        ("msgpack==1.2.4", "msgpack==1.*", "pin it"),
        ('target = "/etc/motd"', 'target = "etc/motd"', "absolute"),
        ('target = "/etc/motd"', 'target = "/etc/../../motd"', "absolute"),
        ('source = "etc/motd"', 'source = "../motd"', "relative"),
        ('source = "etc/motd"', 'source = "etc/mtod"', "no such file"),
        ('argv = ["/bin/sh"]', 'argv = ["/bin/sh", 1]', "argv must be a list of strings"),
        ("[start]", "[start", "image.toml"),
    ],
)
def test_a_wrong_definition_is_refused_by_name(folder: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    (folder / "image.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ImageError, match=said):
        find_definition(folder)


def test_what_is_not_there_is_said_to_be_sought(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUNSHIN_IMAGE_PATH", str(tmp_path))
    with pytest.raises(ImageNotFoundError, match=str(tmp_path)):
        find_definition("no-such-image")
    with pytest.raises(ImageNotFoundError):
        find_definition(tmp_path / "nowhere")
    with pytest.raises(ImageError, match="lower case"):
        find_definition("Not A Name")


def test_a_folder_of_the_users_own_comes_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    mine = folder.rename(folder.with_name("minimal"))
    monkeypatch.setenv("BUNSHIN_IMAGE_PATH", str(mine.parent))
    assert find_definition("minimal").folder == mine
    assert [d.folder for d in iter_definitions() if d.name == "minimal"] == [mine]


def test_the_shipped_definitions_are_found_and_right() -> None:
    shipped = {definition.name: definition for definition in iter_definitions()}
    assert {"browser", "minimal"} <= shipped.keys()
    for definition in shipped.values():
        assert definition.config.argv, definition.name
        assert definition.folder.name == definition.name


ABOVE = """
base = "sample"
[debian]
packages = ["hello"]
[[daemon]]
name = "site"
argv = ["/usr/bin/site"]
ready = "http://127.0.0.1/"
[start.env]
MORE = "1"
"""


def test_a_definition_adds_to_its_base(folder: Path) -> None:
    above = folder.parent / "above"
    above.mkdir()
    (above / "image.toml").write_text(ABOVE)
    definition = find_definition(above)
    assert definition.base == find_definition(folder)
    assert definition.packages == ("hello",)
    assert definition.config.argv == ("/bin/sh",)
    assert definition.config.env["HOME"] == "/root"
    assert definition.config.env["MORE"] == "1"
    assert definition.config.services == {"tool": "/run/tool.sock"}
    assert [daemon.name for daemon in definition.daemons] == ["site"]
    before = definition.digest()
    (folder / "etc" / "motd").write_text("other\n")
    assert find_definition(above).digest() != before


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('ready = "http://127.0.0.1/"', r"ready 'udp:1'"),
        ('argv = ["/usr/bin/site"]', "needs a name of small letters and a command"),
    ],
)
def test_a_wrong_daemon_is_refused(folder: Path, line: str, complaint: str) -> None:
    above = folder.parent / "above"
    above.mkdir()
    wrong = 'ready = "udp:1"' if line.startswith("ready") else "argv = []"
    (above / "image.toml").write_text(ABOVE.replace(line, wrong))
    with pytest.raises(ImageError, match=complaint):
        find_definition(above)


def test_an_image_is_not_its_own_base(folder: Path) -> None:
    (folder / "image.toml").write_text('base = "sample"\n' + GOOD)
    with pytest.raises(ImageError, match="its own base"):
        find_definition(folder)
