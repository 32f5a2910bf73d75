# SPDX-License-Identifier: Apache-2.0
"""Gymnasium wrappers, one a file: import the one you want from its own module."""
