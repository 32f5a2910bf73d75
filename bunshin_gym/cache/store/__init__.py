# SPDX-License-Identifier: Apache-2.0
"""The store behind the snapshot tree: an SQLite index, contents by hash, locks the kernel releases.

Nothing in here knows what a workspace is.
"""
