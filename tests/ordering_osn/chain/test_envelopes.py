"""The decoder of envelopes: its parts, and an error that names the part."""

import pytest

from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope
from ordering_osn.protos import Envelope, Payload
from tests.ordering_osn.helpers.cores import normal


def test_an_envelope_inside_another_message_has_the_same_parts():
    raw = normal("a")
    inner = ParsedEnvelope.of(Envelope.FromString(raw))
    assert inner.raw == raw
    assert inner.header == ParsedEnvelope(raw).header


def payload(**header):
    return Envelope(payload=Payload(header=header).SerializeToString()).SerializeToString()


@pytest.mark.parametrize(
    ("raw", "part", "text"),
    [
        (b"\xff", "message", "the envelope cannot be decoded"),
        (Envelope(payload=b"\xff").SerializeToString(), "payload", "the payload cannot be decoded"),
        (b"", "payload", "the payload has no header"),
        (payload(channel_header=b"\xff"), "header", "the channel header cannot be decoded"),
        (
            payload(signature_header=b"\xff"),
            "signature_header",
            "the signature header cannot be decoded",
        ),
    ],
)
def test_an_error_names_the_part_that_cannot_be_read(raw, part, text):
    with pytest.raises(BadEnvelope, match=text):
        getattr(ParsedEnvelope(raw), part)


def test_a_part_that_cannot_be_read_does_not_hide_the_parts_before_it():
    envelope = ParsedEnvelope(payload(signature_header=b"\xff"))
    with pytest.raises(BadEnvelope):
        _ = envelope.signature_header
    assert envelope.header.channel_id == ""
