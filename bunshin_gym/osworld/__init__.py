# SPDX-License-Identifier: Apache-2.0
"""OSWorld: its task files, an endpoint its controllers can talk to, and its own evaluation in an environment apart."""

from bunshin_gym.osworld.collection import Collection, find_collection
from bunshin_gym.osworld.definition import Definition, Need
from bunshin_gym.osworld.endpoint import Endpoint
from bunshin_gym.osworld.evaluator import Evaluator, shared_evaluator

__all__ = ["Collection", "Definition", "Endpoint", "Evaluator", "Need", "find_collection", "shared_evaluator"]
