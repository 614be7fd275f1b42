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
            """Have members take part, each at its own pace, until all have the same generation."""
            told, agreed = {}, []

            def take_part(member):
                while not agreed:
                    told[member] = member.take_part(b"")
                    now = [told.get(each) for each in steps]
                    if None not in now and len({each.generation for each in now}) == 1:
                        agreed.append(dict(zip(steps, now, strict=True)))

            with ThreadPoolExecutor(len(steps)) as pool:
                list(pool.map(take_part, steps))
            return agreed[0]

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
