# SPDX-License-Identifier: Apache-2.0
"""Makes the shop's task files out of its catalogue: `python envs/tasks/make_shop.py`; equal seeds make equal files."""

from __future__ import annotations

from pathlib import Path

from parts import write_all
from shop_templates import account, orders, pages, questions, staff

if __name__ == "__main__":
    # Ids are given in this order.
    templates = [made for module in (questions, pages, orders, account, staff) for made in module.TEMPLATES.items()]
    write_all(Path(__file__).resolve().parent / "shop", dict(templates), first_id=101)
