# SPDX-License-Identifier: Apache-2.0
"""bunshin image: build, list, remove, collect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bunshin_gym.cli.output import console, mib, table
from bunshin_gym.cli.privilege import need_root

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Root file systems that workspaces start from.")


@app.command()
def build(
    names: Annotated[list[str], typer.Argument(help="Definitions (browser, minimal) or their folders.")],
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build even if it is there: for newer packages.")] = False,
) -> None:
    """Build images from their definitions; at once if they are there."""
    from bunshin_gym.images import ImageStore

    need_root("image build")
    store = ImageStore()
    for name in names:
        image = store.build(name, rebuild=rebuild)
        console.print(f"{image.name}: {image.digest[:12]}, {mib(image.size_bytes)}", highlight=False)


@app.command("import")
def import_image(
    source: Annotated[str, typer.Argument(help="A docker image's name, a folder, or a tarball.")],
    name: Annotated[str | None, typer.Option(help="What to call it here.")] = None,
) -> None:
    """Take an image from docker, from a folder or from a tarball of a root file system."""
    from bunshin_gym.images import ImageStore

    need_root("image import")
    store, path = ImageStore(), Path(source)
    if path.is_dir():
        image = store.from_folder(path, name=name)
    elif path.is_file():
        image = store.from_tarball(path, name=name)
    else:
        image = store.from_docker(source, name=name)
    console.print(f"{image.name}: {image.digest[:12]}, {mib(image.size_bytes)}", highlight=False)


@app.command("list")
def list_images() -> None:
    """List the images there are, and the definitions that could be built."""
    from bunshin_gym.images import ImageStore, iter_definitions

    images = ImageStore().list()
    rows = [(image.name, image.digest[:12], mib(image.size_bytes), image.created) for image in images]
    console.print(table("images", ("name", "digest", "size", "built"), rows))
    known = {image.name for image in images}
    missing = [definition.name for definition in iter_definitions() if definition.name not in known]
    if missing:
        console.print(f"not built yet: {', '.join(missing)}", highlight=False)


@app.command("rm")
def remove(names: Annotated[list[str], typer.Argument(help="Names or digests.")]) -> None:
    """Remove images; refused while a workspace uses one."""
    from bunshin_gym.images import ImageStore

    need_root("image rm")
    store = ImageStore()
    for name in names:
        image = store.remove(name)
        console.print(f"removed {image.name} ({image.digest[:12]})", highlight=False)


@app.command("gc")
def collect() -> None:
    """Remove images without a name that nothing uses, and what dead builders left."""
    from bunshin_gym.images import ImageStore

    need_root("image gc")
    removed = ImageStore().gc()
    console.print(f"removed {len(removed)} images", highlight=False)
