# SPDX-License-Identifier: Apache-2.0
"""Builds the C core as a cffi extension; everything else is in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["bunshin_gym/_build_native.py:ffibuilder"])
