# SPDX-License-Identifier: Apache-2.0
"""Images: root file systems built from Debian packages, docker images, folders and tarballs."""

from bunshin_gym.images.definition import Definition, find_definition, iter_definitions
from bunshin_gym.images.image import Image, ImageConfig
from bunshin_gym.images.store import ImageStore, default_home

__all__ = [
    "Definition",
    "Image",
    "ImageConfig",
    "ImageStore",
    "default_home",
    "find_definition",
    "iter_definitions",
]
