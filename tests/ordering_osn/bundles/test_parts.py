"""The reader of parts accepts less than the protobuf library, and reads the rest alike."""

import random

import pytest

from bench.fuzz.mutation import Shape, mutated
from ordering_osn.chain import transactions
from ordering_osn.chain.bundles.parts import read_part
from ordering_osn.chain.bundles.wire_format import BadWireFormat, message_field, number_field
from ordering_osn.protos import ChannelHeader, Envelope, Header, HeaderType, Payload
from tests.ordering_osn.helpers.bundles import envelope
from tests.ordering_osn.helpers.configs import real_envelopes

REAL = real_envelopes()


def made(channel_header, *, after_header=b"", after_payload=b"", signature_header=b""):
    header = Header(channel_header=channel_header, signature_header=signature_header)
    payload = Payload(header=header, data=b"data").SerializeToString() + after_header
    return Envelope(payload=payload, signature=b"s").SerializeToString() + after_payload


HEADER = ChannelHeader(type=3, channel_id="chain-a", tx_id="t").SerializeToString()


def test_real_envelopes_are_read_as_the_library_reads_them():
    for raw in [*REAL, envelope("chain-a"), made(HEADER)]:
        assert read_part(raw) == transactions.read(raw)


def test_the_transaction_id_is_fabrics_where_it_is_bound_to_the_signer():
    assert read_part(REAL[0]).transaction == transactions.channel_header(REAL[0]).tx_id


def test_what_a_client_adds_to_fabrics_messages_is_skipped():
    for unknown in (number_field(20, 3), message_field(20, b"x"), b"\xa5\1abcd", b"\xa1\1abcdefgh"):
        raw = made(HEADER + unknown, after_header=unknown)
        assert read_part(raw) == transactions.read(raw)


def test_a_default_value_that_a_client_writes_is_read():
    raw = made(HEADER + b"\x30\0")  # epoch 0, as the JavaScript client writes it
    assert read_part(raw) == transactions.read(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "no payload"),
        (
            Envelope(payload=b"\x12\0", signature=b"s").SerializeToString(),
            "the payload has no header",
        ),
        (made(b""), "no channel header"),
        (made(HEADER + b"\x08\3"), "the channel header has field 1 twice"),
        (made(HEADER, after_payload=b"\x12\0"), "the envelope has field 2 twice"),
        (made(HEADER, after_payload=number_field(20, 3)), "in their only encoding"),
        (made(HEADER)[-3:] + made(HEADER)[:-3], "in their only encoding"),
        (made(HEADER)[:-3] + b"\x12\x81\0s", "in their only encoding"),
        (made(HEADER)[:-3], "the envelope has no signature"),
        (made(HEADER.replace(b"\x08\3", b"\x0a\0")), "field 1 of the channel header"),
        (made(HEADER + b"\xa3\1\xa4\1"), "wire type 3"),
        (made(HEADER + b"\x1a\1\xff"), "the channel header's timestamp"),
        (made(HEADER, signature_header=b"\xff"), "the signature header"),
        (made(HEADER.replace(b"chain-a", b"chain\xff\xff")), "the channel ID is not UTF-8"),
        (made(HEADER.replace(b"t", b"\xff")), "the transaction ID is not UTF-8"),
        (made(HEADER + b"\0\0"), "a field number 0"),
        (made(HEADER + b"\x30" + b"\xff" * 10), "more than 64 bits"),
        (made(HEADER + b"\x30" + b"\xff" * 9 + b"\2"), "more than 64 bits"),
        (made(b"\x08\x80\x80\x80\x80\x08" + HEADER[2:]), "is not the type of an envelope"),
        (made(HEADER + b"\xa5\1abc"), "ends within a field"),
        (made(HEADER)[:-1], "ends within a field"),
    ],
)
def test_what_libraries_may_read_in_several_ways_is_refused(raw, text):
    with pytest.raises(BadWireFormat, match=text):
        read_part(raw)


@pytest.mark.parametrize("kind", HeaderType.keys())
def test_every_type_but_those_of_configs_and_requests_is_a_part(kind):
    raw = envelope("chain-a", kind=HeaderType.Value(kind))
    if "CONFIG" in kind or kind in ("ORDERER_TRANSACTION", "DELIVER_SEEK_INFO"):
        with pytest.raises(BadWireFormat, match=r"a (config|request to read) cannot be a part"):
            read_part(raw)
    else:
        assert read_part(raw) == transactions.read(raw)


@pytest.mark.slow
def test_of_changed_envelopes_whatever_is_accepted_the_library_reads_alike():
    rng = random.Random(5)
    accepted = 0
    for _ in range(4000):
        raw = mutated(rng, [*REAL[:3], made(HEADER)], Shape.PROTOBUF)
        try:
            facts = read_part(raw)
        except BadWireFormat:
            continue
        accepted += 1
        assert facts == transactions.read(raw)
    assert 500 < accepted < 3900
