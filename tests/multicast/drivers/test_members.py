"""The contract of all drivers about groups: one member is chosen, and it alone commits."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from multicast.errors import GroupInUse


def test_one_member_of_a_group_is_chosen_and_alone_commits_under_its_generation(world, driver):
    (partition,) = world.topic()
    group = f"g-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        members = [driver.member(group, [partition], max) for _ in range(2)]
        for member in members:
            stack.callback(member.close)

        def settled(steps):
            """Have members take part until all have the same generation, and one is chosen."""
            with ThreadPoolExecutor(len(steps)) as pool:
                while True:
                    told = list(pool.map(lambda member: member.take_part(b""), steps))
                    if None not in told and len({each.generation for each in told}) == 1:
                        return dict(zip(steps, told, strict=True))

        told = settled(members)
        (chosen,) = (member for member in members if told[member].chosen)
        (other,) = (member for member in members if member is not chosen)
        driver.commit(group, {partition: (1, "")}, told[chosen])
        for refused in (None, told[chosen]._replace(generation=0)):
            with pytest.raises(GroupInUse):
                driver.commit(group, {partition: (0, "")}, refused)
        chosen.close()
        after = settled([other])[other]
        assert after.chosen
        with pytest.raises(GroupInUse):
            driver.commit(group, {partition: (0, "")}, told[chosen])
        driver.commit(group, {partition: (2, "")}, after)
        assert driver.committed(group, [partition]) == {partition: (2, "")}
