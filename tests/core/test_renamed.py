# SPDX-License-Identifier: Apache-2.0
"""Directories of the image, or of before a fork, renamed: in a branch no less than in a new workspace."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from filetree import change_at_random, tree
from support import engines

from bunshin_gym.workspace import Core, Snapshot, Workspace

Start = Callable[..., Workspace]
LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture(params=engines())
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _image_trees(rootfs: Path) -> None:
    """Directories in directories, with files of several names across them; an image never changes."""
    top = rootfs / "trees"
    for outer in "abcd":
        for inner in "xyz":
            (top / outer / inner).mkdir(parents=True)
            for name in "12":
                (top / outer / inner / name).write_text(f"image {outer}{inner}{name}")
    for outer, other in ("ab", "bc", "cd", "da"):
        os.link(top / outer / "x" / "1", top / other / "y" / f"of-{outer}")
        os.link(top / outer / "x" / "1", top / outer / "here")


def exchange(one: Path, other: Path) -> None:
    if LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "exchange")


# Each step begins where the one before ended, in the same workspace or in a branch of it.


def within_its_parent(top: Path) -> None:
    (top / "a").rename(top / "a2")
    (top / "a2" / "new").write_text("after")
    (top / "b" / "before").write_text("before")
    (top / "b").rename(top / "b2")


def to_another_parent(top: Path) -> None:
    (top / "a2" / "x").rename(top / "c" / "ax")
    (top / "b2").rename(top / "c" / "b2")
    (top / "c" / "b2" / "x" / "1").write_text("all names of it")


def in_a_renamed_one(top: Path) -> None:
    (top / "c" / "b2" / "y").rename(top / "c" / "b2" / "y2")
    (top / "c" / "b2" / "z" / "2").unlink()
    (top / "c").rename(top / "c2")
    (top / "c2" / "b2" / "z").rename(top / "out-of-it")


def over_an_empty_one(top: Path) -> None:
    shutil.rmtree(top / "d" / "z")
    (top / "d" / "z").mkdir()
    (top / "out-of-it").rename(top / "d" / "z")
    shutil.rmtree(top / "d" / "x")
    (top / "d" / "x").mkdir()
    (top / "d" / "x" / "new").write_text("new")


def back_again(top: Path) -> None:
    (top / "c2" / "b2").rename(top / "b")
    (top / "b" / "y2").rename(top / "b" / "y")
    (top / "a2").rename(top / "a")
    (top / "c2" / "ax").rename(top / "a" / "x")


def in_exchange(top: Path) -> None:
    exchange(top / "a", top / "b" / "y")
    exchange(top / "d" / "z", top / "c2" / "x" / "1")


def a_new_one_of_the_old_name(top: Path) -> None:
    (top / "b").rename(top / "b3")
    (top / "b" / "x").mkdir(parents=True)
    (top / "b" / "x" / "1").write_text("new")
    shutil.rmtree(top / "b3" / "y")
    (top / "b3" / "y").mkdir()


STEPS = [
    within_its_parent,
    to_another_parent,
    in_a_renamed_one,
    over_an_empty_one,
    back_again,
    in_exchange,
    a_new_one_of_the_old_name,
]


def stored_and_loaded(snapshot: Snapshot, path: Path, bunshin: Core) -> Snapshot:
    """All layers above the image are one there, so this is what a long chain's merged layer shows, too."""
    snapshot.persist(path).result(timeout=60)
    loaded = Snapshot.load(path, core=bunshin)
    shutil.rmtree(path)
    return loaded


def test_in_one_workspace(start: Start, engine: str) -> None:
    """Its layers are deltas on one another, but for those that say where a directory was."""
    source = start()
    with ExitStack() as stack:
        taken = []
        for step in STEPS:
            step(source.root / "trees")
            taken.append((step.__name__, tree(source, "/trees"), stack.enter_context(source.snapshot(engine=engine))))
            (source.root / "trees" / step.__name__).write_text("and then a delta")
            taken.append((step.__name__, tree(source, "/trees"), stack.enter_context(source.snapshot(engine=engine))))
        for name, expected, snapshot in taken:
            with snapshot.branch() as branch:
                assert tree(branch, "/trees") == expected, name


def test_in_branches_of_branches(start: Start, engine: str, bunshin: Core, tmp_path: Path) -> None:
    """Each branch renames what the one above left; what is loaded from disk is the same."""
    source = start()
    with ExitStack() as stack:
        for step in STEPS:
            before = tree(source, "/trees")
            snapshot = stack.enter_context(source.snapshot(engine=engine))
            branch = stack.enter_context(snapshot.branch())
            step(branch.root / "trees")
            assert tree(source, "/trees") == before
            expected = tree(branch, "/trees")
            with branch.snapshot(engine=engine) as second:
                loaded = stack.enter_context(stored_and_loaded(second, tmp_path / "stored", bunshin))
            assert tree(stack.enter_context(loaded.branch()), "/trees") == expected, step.__name__
            source = branch


def test_a_layer_copies_what_changed_again_once_it_has_told_of_a_rename(start: Start) -> None:
    source = start()
    (source.root / "large").write_bytes(os.urandom(16 << 20))
    (source.root / "trees" / "a").rename(source.root / "trees" / "e")
    with source.snapshot() as first, source.snapshot() as second:
        assert first.stats.layer_bytes >= 16 << 20
        assert second.stats.layer_bytes < 1 << 20
        (source.root / "trees" / "e").rename(source.root / "trees" / "f")
        with source.snapshot() as third, third.branch() as branch:
            assert third.stats.layer_bytes >= 16 << 20
            assert tree(branch, "/trees") == tree(source, "/trees")


def rename_at_random(top: Path, rng: random.Random) -> None:
    directories = sorted(path for path in top.rglob("*") if path.is_dir() and not path.is_symlink())
    new = rng.choice([top, *directories]) / f"n{rng.randrange(8)}"
    old, other = (rng.choice(directories) if directories else new for _ in range(2))
    with suppress(OSError):  # what cannot be done there is no change
        kind = rng.choice(["rename", "rename", "exchange", "over", "again"])
        if kind == "exchange":
            exchange(old, other)
        elif kind == "over":
            shutil.rmtree(other)
            other.mkdir()
            old.rename(other)
        elif kind == "again":
            shutil.rmtree(old)
            old.mkdir()
        else:
            old.rename(new)


@pytest.mark.parametrize("seed", range(int(os.environ.get("BUNSHIN_SEEDS", "3"))))
def test_at_random(seed: int, start: Start, bunshin: Core, tmp_path: Path) -> None:
    """Whatever happens in between, branches of each snapshot have the tree of its moment; so has one from disk."""
    rng = random.Random(seed)
    source = start()
    with ExitStack() as stack:
        for generation in range(3):
            taken = []
            for _ in range(4):
                for _ in range(8):
                    rng.choice([change_at_random, rename_at_random])(source.root / "trees", rng)
                snapshot = stack.enter_context(source.snapshot(engine="criu"))
                taken.append((tree(source, "/trees"), snapshot))
            for number, (expected, snapshot) in enumerate(taken):
                branch = stack.enter_context(snapshot.branch())
                assert tree(branch, "/trees") == expected, f"seed {seed}, generation {generation}, snapshot {number}"
            with stored_and_loaded(snapshot, tmp_path / "stored", bunshin) as loaded:
                from_disk = stack.enter_context(loaded.branch())
            assert tree(from_disk, "/trees") == expected, f"seed {seed}, generation {generation}, from disk"
            source = rng.choice([branch, from_disk])


@pytest.mark.slow
def test_so_deep_that_layers_are_merged(start: Start, engine: str) -> None:
    rng = random.Random(7)
    current = start()
    for level in range(60):
        for _ in range(4):
            rng.choice([change_at_random, rename_at_random])(current.root / "trees", rng)
        (current.root / "trees" / f"level-{level}").mkdir()
        (child,) = current.fork(1, engine=engine)
        assert tree(child, "/trees") == tree(current, "/trees"), level
        current.close()
        current = child
    current.close()
