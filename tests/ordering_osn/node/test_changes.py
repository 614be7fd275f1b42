"""Coroutines that wait for a change are woken by any thread, and none misses a change."""

import asyncio

from ordering_osn.node.changes import ChangeEvent, Changes
from tests.ordering_osn.helpers.desk import in_thread


async def test_each_change_wakes_all_who_wait_for_it_and_nobody_else():
    changes = Changes()
    with changes.watch("x") as first, changes.watch("x") as second, changes.watch("y") as other:
        waiting = [asyncio.create_task(event.wait()) for event in (first, second, other)]
        await asyncio.sleep(0)
        in_thread(lambda: changes.notify("x"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, True, False]
        waiting[2].cancel()


async def test_a_change_between_the_look_and_the_wait_is_not_missed():
    changes = Changes()
    with changes.watch("x") as event:
        event.clear()
        in_thread(lambda: changes.notify("x"))  # it looked, and does not wait yet
        await asyncio.sleep(0)
        waiting = asyncio.create_task(event.wait())
        for _ in range(3):
            await asyncio.sleep(0)
        assert waiting.done()
        event.clear()
        waiting = asyncio.create_task(event.wait())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_who_stopped_waiting_is_forgotten_and_who_still_waits_is_not():
    changes = Changes()
    with changes.watch("x") as stays:
        with changes.watch("x"):
            pass
        waiting = asyncio.create_task(stays.wait())
        changes.notify("x")
        await asyncio.wait_for(waiting, 60.0)
    assert not changes._events
    changes.notify("x")  # nobody waits


def test_an_event_of_a_loop_that_has_ended_is_set_without_an_error():
    async def made():
        return ChangeEvent()

    asyncio.run(made()).set_from_any_thread()
