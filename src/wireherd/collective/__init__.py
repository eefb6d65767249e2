"""The collective room: ranks on several workers add a tensor among themselves, without their client in between.

It knows links, plans and sums; it must never know a device, a buffer or a command of the client: the worker hands it
plain memory. Nothing that a peer sends is believed before it is compared with what the plan expects.

Start at `schedule.py` (pure: who sends what to whom), then `allreduce.py` (carries it out) and `group.py` (how the
members of a group find each other).
"""

from __future__ import annotations

from wireherd.collective.group import Group, Groups

__all__ = ["Group", "Groups"]
