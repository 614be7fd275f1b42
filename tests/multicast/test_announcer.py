"""Announcements go where collectors publish an address, and nowhere in an epoch of version 2."""

import socket
from contextlib import closing
from dataclasses import replace

import pytest

from multicast.announcements import Address, decode
from multicast.announcer import Announcer
from multicast.control import address_record
from multicast.drivers.protocol import Record
from tests.helpers.plans import chain
from tests.multicast.tickets.test_places import state_of
from topology.carry_over import with_order_version

TOKEN = b"12345678"
HERE = "127.0.0.1"
FIRST = chain()
SECOND = with_order_version(replace(FIRST, epoch=2, base_epoch=1), 2, FIRST)
THIRD = with_order_version(replace(SECOND, epoch=3, base_epoch=2), 1, SECOND)


def test_messages_are_announced_until_an_epoch_of_version_2_begins_and_again_after_it():
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening,
        closing(Announcer(iter(range(1, 100)).__next__)) as announcer,
    ):
        listening.bind((HERE, 0))
        address = Address(HERE, listening.getsockname()[1], TOKEN)

        def send(*plans):
            state = state_of(*plans)
            key, value = address_record(1 if state.epoch < 3 else 3, "K1", address)
            state.read(Record(100, value, key))
            announcer.learn(state)
            announcer.log("P1").sent(1)

        def announced():
            return [tuple(count) for count in decode(TOKEN, listening.recv(2048)).counts]

        listening.settimeout(60.0)
        send(FIRST)
        assert announced() == [(0, 0, 0)]
        announcer.log("P1").settled(1)
        assert announced() == [(0, 1, 1)]

        send(FIRST, SECOND)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):  # a datagram on this machine arrives at once
            listening.recv(2048)

        listening.settimeout(60.0)
        send(FIRST, SECOND, THIRD)
        assert announced() == [(0, 3, 1)]
