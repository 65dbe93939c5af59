"""Schemes of one's own, as a user would write them, for better or worse."""

from __future__ import annotations

import os
from dataclasses import replace

from ddpsim.schedules import schemes
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs


def by_rank(setup: SchemeInputs) -> Schedule:
    """Send buckets in another order on rank 1, which would never do."""
    made = schemes.ddp(setup)
    return replace(made, messages=made.messages[::-1]) if os.environ["RANK"] == "1" else made


def every_second(setup: SchemeInputs) -> Schedule:
    """Send gradients in every second iteration."""
    return schemes.priority(replace(setup, every=2))
