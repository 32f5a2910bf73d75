# SPDX-License-Identifier: Apache-2.0
"""What workspaces and snapshots take of the machine, each page of memory counted once.

group = account([source, *branches], [snapshot])
group.total.machine_bytes               # what all of them together cost
group.members[branch.id].private_unique_bytes   # what one branch has that no other has
"""

from __future__ import annotations

from collections.abc import Iterable

from bunshin_gym.errors import ClosedError, UsageError
from bunshin_gym.types import GroupStats, MemoryAccount
from bunshin_gym.workspace import Core, Snapshot, Workspace
from bunshin_gym.workspace import core as default_core

__all__ = ["GroupStats", "MemoryAccount", "account", "account_ids"]


def account(workspaces: Iterable[Workspace] = (), snapshots: Iterable[Snapshot] = ()) -> GroupStats:
    """Accounts for a group at this moment; freeze what runs if the sum must be exact.

    A workspace is its processes; a snapshot is the process of its page pool, if its engine has one.
    The page pools that the workspaces came from are in the total even if their snapshots are closed.

    Raises:
        UsageError: nothing is asked for, or the members are of different state directories.
        ClosedError: a member has been closed.
        PrivilegeError: not root.
    """
    members: list[Workspace | Snapshot] = [*workspaces, *snapshots]
    for member in members:
        if member.closed:
            raise ClosedError(f"account: {member.id} has been closed")
    cores = {id(member.core): member.core for member in members}
    if len(cores) != 1:
        raise UsageError(f"account: members of {len(cores)} state directories; there must be one")
    (core,) = cores.values()
    return account_ids([member.id for member in members], core=core)


def account_ids(ids: Iterable[str], *, core: Core | None = None) -> GroupStats:
    """As `account`, by ids and whichever process owns them; one that is gone takes nothing."""
    return (core or default_core()).native.account(list(dict.fromkeys(ids)))
