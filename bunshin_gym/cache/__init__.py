# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache and the snapshot tree that it stands on. See docs/cache.md.

From below: `store/` keeps rows and contents, `worth.py` says what a snapshot saves, `tiers.py` and `disk_tier.py`
keep snapshots, `tree.py` joins them; `attempt.py` walks with `live.py` for its workspace, `sequence.py` is what
the attempts of a process share. Nothing here knows of workspaces but through the `Forkable` protocol.
"""

from __future__ import annotations

from bunshin_gym.cache.attempt import RESET, Attempt, CachedStep, Source, Stateful
from bunshin_gym.cache.keys import Context, ToolSpec
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.sequence import CachePolicy, SequenceCache
from bunshin_gym.cache.snapshots import DurableHandle, Loader, SnapshotHandle, Snapshotting
from bunshin_gym.cache.stamps import Stamps
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree

__all__ = [
    "RESET",
    "Attempt",
    "Booted",
    "Budgets",
    "CachePolicy",
    "CachedStep",
    "Context",
    "DurableHandle",
    "Loader",
    "SequenceCache",
    "SnapshotHandle",
    "SnapshotTree",
    "Snapshotting",
    "Source",
    "Stamps",
    "Stateful",
    "ToolSpec",
]
