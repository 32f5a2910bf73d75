# SPDX-License-Identifier: Apache-2.0
"""For tests, yours included: the contract of a fork, and a fake workspace that keeps it."""

from bunshin_gym.testing.contract import check_fork
from bunshin_gym.testing.fake import FAKE_TOOLS, FakeHost, FakeWorkspace

__all__ = ["FAKE_TOOLS", "FakeHost", "FakeWorkspace", "check_fork"]
