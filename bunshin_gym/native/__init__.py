# SPDX-License-Identifier: Apache-2.0
"""The C core as Python objects; the only package that sees cffi.

Calls release the GIL and may come from any thread. Handles belong to the process that made
them: in a forked child they raise ClosedError and are left alone, whatever the child does with them.
"""

from bunshin_gym.native.names import arm_fault, engine_names, fault_points
from bunshin_gym.native.objects import NativeCore, NativeSnapshot, NativeWorkspace
from bunshin_gym.native.values import GcReport, Spec

__all__ = [
    "GcReport",
    "NativeCore",
    "NativeSnapshot",
    "NativeWorkspace",
    "Spec",
    "arm_fault",
    "engine_names",
    "fault_points",
]
