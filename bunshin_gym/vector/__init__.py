# SPDX-License-Identifier: Apache-2.0
"""Many workspaces stepped at once, as one `gymnasium.vector.VectorEnv`."""

from bunshin_gym.vector.admission import Admission, Permit, shared_admission
from bunshin_gym.vector.env import BunshinVectorEnv, EnvOptions, make_group

__all__ = ["Admission", "BunshinVectorEnv", "EnvOptions", "Permit", "make_group", "shared_admission"]
