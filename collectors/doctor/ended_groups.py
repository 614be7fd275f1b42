"""What a consumer group reads, as far as its commit tells, and whether a plan still serves it."""

from __future__ import annotations

from multicast.consuming.cursor import Cursor, interest_digest
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlState
from multicast.errors import UncoveredInterest


def request_of(state: ControlState, group: str, cursor: Cursor) -> SubscriptionRequest | None:
    """Give what a group's consumer has subscribed to, as far as its name and its cursor tell.

    That is the name, if a plan has it; else an interest of which the cursor has the digest.
    """
    if any(plan.subscription(group) is not None for plan in state.plans):
        return SubscriptionRequest(group, None)
    known = {entry.interest: None for plan in state.plans for entry in plan.consumers}
    partitions = state.plan().partitions
    known |= {tuple(sorted(group.split("+"))): None, tuple(sorted(partitions)): None}
    known |= {(partition,): None for partition in partitions}
    matching = (each for each in known if interest_digest(each) == cursor.interest)
    return next((SubscriptionRequest(None, each) for each in matching), None)


def why_ended(state: ControlState, group: str, cursor: Cursor) -> str | None:
    """Say that the newest plan ends the group's consumer; None: it does not, as far as is known."""
    request = request_of(state, group, cursor)
    try:
        if request is not None:
            request.resolve(state.plan())
    except UncoveredInterest as error:
        return f"no plan serves consumer {group} any more: {error}"
    return None
