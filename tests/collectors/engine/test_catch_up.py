"""Streams that are far behind are read apart: whoever is up to date does not wait for them."""

import threading

import pytest

from collectors.engine.catch_up import CatchUpLoop
from collectors.engine.core_runner import CoreRunner
from multicast.control import stream_partition
from multicast.errors import ClusterUnreachable, Trimmed, Truncated
from tests.collectors.engine.test_engine import (
    AT,
    Hosted,
    Sink,
    Streams,
    ordered_once,
    while_it_polls,
    write_to_own_logs,
)
from tests.helpers.plans import tree_plan
from tests.helpers.small import Small, until

FAR = 3000  # records: six turns


@pytest.fixture
def streams():
    """Both loops, turned by hand; the live one's sink has read all that there is."""
    made = Streams()
    made.behind = CatchUpLoop(made.loop._driver, made.loop)
    made.here = Sink()
    made.write(FAR)
    made.behind.subscribe(made.here, {AT: FAR}, ends={AT: FAR})
    yield made
    made.behind.close()
    made.loop.close()


def catch_up(streams):
    for _ in range(20):
        if streams.behind._subscriptions:
            streams.behind._turn()
    assert not streams.behind._subscriptions


@pytest.mark.parametrize("start", [0, FAR - 1000])
def test_each_gets_all_in_order_wherever_it_begins(streams, start):
    sink = Sink()
    streams.behind.subscribe(sink, {AT: start}, ends={AT: FAR})
    assert bool(streams.behind._subscriptions) == (start == 0)
    streams.write(5)
    streams.turn()
    assert streams.here.offsets == list(range(FAR, FAR + 5))
    catch_up(streams)
    streams.write(5)
    streams.turn()
    streams.turn()
    assert sink.offsets == list(range(start, FAR + 10))
    assert streams.here.offsets == list(range(FAR, FAR + 10))


def test_it_is_paused_and_leaves_wherever_it_is_read(streams):
    sink, other = Sink(), Sink()
    for each in (sink, other):
        streams.behind.subscribe(each, {AT: 0}, ends={AT: FAR})
    streams.behind._turn()
    streams.behind.pause(sink, AT, paused=True)
    read = len(sink.offsets)
    assert 0 < read < FAR
    for _ in range(10):
        streams.behind._turn()
    assert len(sink.offsets) == read
    streams.behind.pause(sink, AT, paused=False)
    catch_up(streams)
    streams.turn()
    assert sink.offsets == other.offsets == list(range(FAR))
    streams.behind.pause(sink, AT, paused=True)
    streams.behind.unsubscribe(other, [AT])
    streams.write(1)
    streams.turn()
    assert len(sink.offsets) == len(other.offsets) == FAR
    streams.behind.pause(sink, AT, paused=False)
    streams.turn()
    assert sink.offsets == list(range(FAR + 1))


def test_an_end_that_is_lost_while_it_is_given_on_is_noticed(streams):
    sink = Sink()
    streams.behind.subscribe(sink, {AT: 0}, ends={AT: FAR})
    catch_up(streams)
    streams.log.lose(AT, FAR - 10)
    streams.write(20)
    streams.turn()
    streams.turn()
    assert [type(error) for error in sink.errors] == [Truncated]


@pytest.mark.parametrize("live_first", [True, False])
def test_an_end_that_is_lost_fails_whoever_has_read_it_and_who_comes_then_goes_on(
    streams, live_first
):
    streams.write(5)
    streams.turn()
    sink, later = Sink(), Sink()
    streams.behind.subscribe(sink, {AT: 0}, ends={AT: FAR + 5})
    streams.behind._turn()
    streams.log.lose(AT, FAR + 3)
    streams.write(20)
    if live_first:
        streams.turn()
    catch_up(streams)
    streams.turn()
    assert [type(error) for error in streams.here.errors] == [Truncated]
    assert streams.here.offsets == list(range(FAR, FAR + 5))
    if live_first:
        streams.turn()
        assert (sink.offsets, sink.errors) == (list(range(FAR + 23)), [])
    streams.behind.subscribe(later, {AT: 0}, ends={AT: FAR + 20})
    catch_up(streams)
    streams.turn()
    assert (later.offsets, later.errors) == (list(range(FAR + 23)), [])
    assert streams.failed == []


def test_what_stops_the_reading_from_far_behind_fails_nobody_else(streams):
    sink = Sink()
    streams.behind.subscribe(sink, {AT: 0}, ends={AT: FAR})
    streams.behind._failed(ClusterUnreachable("no broker answered"))
    assert [type(error) for error in sink.errors] == [ClusterUnreachable]
    assert streams.here.errors == streams.failed == []
    streams.behind._failed(Trimmed("nobody reads it any more").about(AT))
    assert streams.here.errors == streams.failed == []


def test_an_end_that_is_lost_before_the_live_loop_polls_is_noticed(streams):
    sink = Sink()
    streams.turn()
    streams.behind.subscribe(sink, {AT: 0}, ends={AT: FAR})

    def given_on():
        catch_up(streams)
        streams.log.lose(AT, FAR - 10)
        streams.write(20)

    while_it_polls(streams, given_on)
    streams.turn()
    streams.turn()
    assert [type(error) for error in sink.errors] == [Truncated]


@pytest.mark.slow
def test_who_reads_on_for_long_delays_no_other_collector(monkeypatch):
    plan, read_on, take = tree_plan(3, "A"), threading.Event(), CoreRunner.on_batches
    behind = stream_partition(plan, "K4")

    def held(runner, batches):
        assert behind not in {batch.partition for batch in batches} or read_on.wait(600)
        take(runner, batches)

    with Small(plan) as system:
        for _ in range(FAR):
            system.log.write(behind, b"foreign")
        monkeypatch.setattr(CoreRunner, "on_batches", held)
        with Hosted(system) as hosted:
            for name in ("K2", "K3"):
                system.log.write(stream_partition(plan, name), b"foreign")
                until(lambda core=hosted.nodes[name].core: core.own.offset_next == 1)
            assert not hosted.nodes["K4"].core.caught_up()
            read_on.set()
            write_to_own_logs(system, hosted.nodes["K4"])
            until(lambda: ordered_once(hosted.nodes["K4"]))
