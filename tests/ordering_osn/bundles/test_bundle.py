"""Bundles from strangers: each refusal has one sentence, one status, and the chain to blame."""

import hashlib
from datetime import UTC, datetime

import pytest

from ordering_osn.chain.bundles import bundle as bundles
from ordering_osn.chain.bundles.bundle import (
    BadBundle,
    check_signature,
    encode_bundle,
    make_bundle,
    read_bundle,
)
from ordering_osn.chain.envelopes import signed_envelope
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.node.filters import WRITERS
from ordering_osn.protos import HeaderType
from ordering_osn.wire import multichain_pb2 as stubs
from tests.ordering_osn.helpers.bundles import AB, Scribe, bundle, envelope
from tests.ordering_osn.helpers.chains import FABRIC, ORDERER, STRANGER, USER
from tests.ordering_osn.helpers.pki import assert_one_sentence

NOW = datetime(2026, 11, 22, tzinfo=UTC)
CONFIGS = {name: ChannelConfig.from_block((FABRIC / f"{name}.block").read_bytes()) for name in AB}


def real(signer=USER, **what):
    parts = {
        chain: signed_envelope(HeaderType.ENDORSER_TRANSACTION, chain, b"x", signer=USER, now=NOW)
        for chain in AB
    }
    return make_bundle(parts, signer=signer, **what)


def wire(made=None):
    """The stubs' form of a bundle and of its content."""
    raw = stubs.Bundle.FromString(encode_bundle(made or bundle()))
    return raw, stubs.BundleContent.FromString(raw.content)


def packed(raw, content=None):
    if content is not None:
        raw.content = content.SerializeToString()
    return raw.SerializeToString()


def refusal(raw):
    with pytest.raises(BadBundle) as caught:
        read_bundle(raw)
    assert_one_sentence(caught.value)
    return caught.value.status, caught.value.chain, caught.value.info


def test_a_bundle_is_read_as_it_was_made():
    made = real(expiry=77)
    again = read_bundle(encode_bundle(made))

    assert again == made
    assert again.chains == AB
    assert again.expiry == 77
    assert again.submitter == USER.creator
    assert len(again.nonce) == 24


def test_its_id_is_the_hash_of_what_the_submitter_signs():
    made = real()
    raw, _ = wire(made)
    assert made.id == hashlib.sha256(raw.content).digest()
    assert real().id != made.id  # its nonce is fresh


# -- signatures ------------------------------------------------------------------------------------


def test_the_submitters_signature_is_verified_without_a_channel():
    check_signature(*real().signed)


@pytest.mark.parametrize("name", AB)
def test_a_chains_writers_policy_verifies_the_same_signature(name):
    CONFIGS[name].policies.evaluate(WRITERS, [SignedData(*real().signed)])
    with pytest.raises(PolicyNotMet):
        CONFIGS[name].policies.evaluate(WRITERS, [SignedData(*real(signer=STRANGER).signed)])


def forged(**fields):
    def forge(made):
        raw, content = wire(made)
        for name, value in fields.items():
            setattr(content, name, value)
        return packed(raw, content)

    return forge


def forged_signature(made):
    raw, _ = wire(made)
    raw.signature = real().signature
    return packed(raw)


def added_with_its_chain(made):
    raw, content = wire(made)
    raw.envelopes.append(envelope("chain-c"))
    content.parts.add(chain="chain-c", sha256=hashlib.sha256(raw.envelopes[-1]).digest())
    return packed(raw, content)


def exchanged_with_its_hash(made):
    raw, content = wire(made)
    raw.envelopes[1] = envelope("chain-b", b"another")
    content.parts[1].sha256 = hashlib.sha256(raw.envelopes[1]).digest()
    return packed(raw, content)


@pytest.mark.parametrize(
    "forge",
    [
        forged(submitter=ORDERER.creator),
        forged(expiry=5),
        forged(nonce=bytes(24)),
        forged_signature,
        added_with_its_chain,
        exchanged_with_its_hash,
    ],
)
def test_whatever_is_changed_in_what_is_signed_the_signature_no_longer_fits(forge):
    changed = read_bundle(forge(real()))
    with pytest.raises(BadBundle) as caught:
        check_signature(*changed.signed)
    assert caught.value.status == 403
    assert_one_sentence(caught.value)


def test_a_submitter_that_is_no_identity_is_refused():
    with pytest.raises(BadBundle, match="did not sign") as caught:
        check_signature(*bundle().signed)
    assert caught.value.status == 403


# -- forged parts ----------------------------------------------------------------------------------


def exchanged(raw, _):
    raw.envelopes[0], raw.envelopes[1] = raw.envelopes[1], raw.envelopes[0]


def of_another_bundle(raw, _):
    raw.envelopes[1] = envelope("chain-b", b"other")


def a_part_too_many(raw, _):
    raw.envelopes.append(envelope("chain-c"))


def a_part_too_few(raw, _):
    del raw.envelopes[1]


def for_one_chain(raw, content):
    del content.parts[1], raw.envelopes[1]


def for_no_chain(raw, content):
    del content.parts[:], raw.envelopes[:]


def twice(raw, content):
    content.parts[1].CopyFrom(content.parts[0])
    raw.envelopes[1] = raw.envelopes[0]


def not_sorted(raw, content):
    exchanged(raw, content)
    content.parts.extend([content.parts.pop(1), content.parts.pop(0)])


@pytest.mark.parametrize(
    ("change", "chain", "text"),
    [
        (exchanged, "chain-a", "not the envelope that the submitter signed for"),
        (of_another_bundle, "chain-b", "not the envelope that the submitter signed for"),
        (a_part_too_many, "", "2 chains and has 3 envelopes"),
        (a_part_too_few, "", "2 chains and has 1 envelopes"),
        (for_one_chain, "", "names 1 chains, not 2 to 64"),
        (for_no_chain, "", "names 0 chains"),
        (twice, "chain-a", "twice"),
        (not_sorted, "chain-a", "not sorted"),
    ],
)
def test_parts_that_are_not_those_of_the_content_are_refused(change, chain, text):
    raw, content = wire()
    change(raw, content)
    status, found, info = refusal(packed(raw, content))
    assert (status, found) == (400, chain)
    assert text in info


def test_a_part_that_names_another_channel_is_refused():
    with pytest.raises(BadBundle, match="is an envelope for channel 'chain-c'") as caught:
        make_bundle({"chain-a": envelope("chain-a"), "chain-b": envelope("chain-c")},
                    signer=Scribe())  # fmt: skip
    assert (caught.value.status, caught.value.chain) == (400, "chain-b")


@pytest.mark.parametrize("kind", ["CONFIG", "CONFIG_UPDATE", "ORDERER_TRANSACTION"])
def test_a_config_is_not_a_part(kind):
    parts = {"chain-a": envelope("chain-a"),
             "chain-b": envelope("chain-b", kind=HeaderType.Value(kind))}  # fmt: skip
    with pytest.raises(BadBundle, match="a config cannot be a part") as caught:
        make_bundle(parts, signer=Scribe())
    assert caught.value.chain == "chain-b"


@pytest.mark.parametrize("raw", [b"", b"\xff", b"\n\0"])
def test_a_part_that_is_no_envelope_is_refused(raw):
    with pytest.raises(BadBundle, match="the part for chain 'chain-b'") as caught:
        make_bundle({"chain-a": envelope("chain-a"), "chain-b": raw}, signer=Scribe())
    assert (caught.value.status, caught.value.chain) == (400, "chain-b")


# -- limits ----------------------------------------------------------------------------------------


def sized(chain, size):
    spare = size - len(envelope(chain, b"x" * 200_000)) + 200_000
    made = envelope(chain, b"x" * spare)
    assert len(made) == size
    return made


@pytest.mark.slow
def test_eight_parts_of_a_megabyte_are_a_bundle_and_one_byte_more_is_not():
    size = bundles.PART_BYTES_MAX
    parts = {f"chain-{number}": sized(f"chain-{number}", size) for number in range(8)}
    made = make_bundle(parts, signer=Scribe())
    assert len(encode_bundle(made)) <= bundles.BUNDLE_BYTES_MAX

    with pytest.raises(BadBundle, match="envelopes have") as caught:
        make_bundle({**parts, "chain-8": envelope("chain-8")}, signer=Scribe())
    assert caught.value.status == 413
    parts["chain-3"] = sized("chain-3", size + 1)
    with pytest.raises(BadBundle, match="the part for chain 'chain-3' has") as caught:
        make_bundle(parts, signer=Scribe())
    assert (caught.value.status, caught.value.chain) == (413, "chain-3")


def test_sixty_four_chains_are_a_bundle_and_sixty_five_are_not():
    def parts(count):
        return {name: envelope(name) for name in (f"c{number:02}" for number in range(count))}

    assert len(make_bundle(parts(64), signer=Scribe()).parts) == 64
    with pytest.raises(BadBundle, match="more than 64") as caught:
        make_bundle(parts(65), signer=Scribe())
    assert caught.value.status == 400


def test_what_surrounds_the_envelopes_is_within_the_limit_of_a_bundle():
    parts = {name: envelope(name) for name in (f"{number:02}" + "c" * 247 for number in range(64))}
    signer = Scribe(creator=b"i" * bundles.SUBMITTER_BYTES_MAX)
    made = make_bundle(parts, signer=signer, expiry=2**63 - 1)
    around = len(encode_bundle(made)) - sum(map(len, parts.values()))
    spare = bundles.NONCE_BYTES_MAX - 24 + bundles.SIGNATURE_BYTES_MAX
    assert around + spare <= bundles.BUNDLE_BYTES_MAX - bundles.ENVELOPES_BYTES_MAX


def test_bytes_beyond_the_limit_are_refused_before_they_are_read():
    status, _, info = refusal(bytes(bundles.BUNDLE_BYTES_MAX + 1))
    assert status == 413
    assert f"more than {bundles.BUNDLE_BYTES_MAX}" in info


def many(field, count, value=b""):
    raw = stubs.Bundle(content=b"x", signature=b"s").SerializeToString()
    return raw + b"".join(bytes((field << 3 | 2, len(value))) + value for _ in range(count))


def test_many_small_fields_are_not_all_read():
    assert "more than 64 envelopes" in refusal(many(3, 100_000))[2]
    raw, _ = wire()
    raw.content = b"\n\0" * 100_000
    assert "more than 64 chains" in refusal(packed(raw))[2]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("nonce", b"", "nonce has 0 bytes"),
        ("nonce", bytes(15), "nonce has 15 bytes"),
        ("nonce", bytes(65), "nonce has 65 bytes"),
        ("submitter", b"", "identity has 0 bytes"),
        ("submitter", bytes(16385), "identity has 16385 bytes"),
        ("expiry", 1 << 63, "is not an offset"),
    ],
)
def test_a_field_of_the_content_outside_its_limits_is_refused(field, value, text):
    raw, content = wire()
    setattr(content, field, value)
    status, _, info = refusal(packed(raw, content))
    assert status == 400
    assert text in info


def test_an_expiry_that_is_no_offset_is_not_signed():
    with pytest.raises(BadBundle, match="not an offset"):
        bundle(expiry=-1)


@pytest.mark.parametrize("name", ["chain\ud800", "chain\n"])
def test_what_is_no_name_is_not_signed(name):
    with pytest.raises(BadBundle, match="is not the name of a chain") as caught:
        make_bundle({"chain-a": envelope("chain-a"), name: b"x"}, signer=Scribe())
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("name", ["", "c" * 250])
def test_a_chains_name_outside_its_limits_is_refused(name):
    raw, content = wire()
    content.parts[0].chain = name
    assert "chain's name has" in refusal(packed(raw, content))[2]


@pytest.mark.parametrize("size", [0, 257])
def test_a_signature_outside_its_limits_is_refused(size):
    raw, _ = wire()
    raw.signature = bytes(size)
    assert f"signature has {size} bytes" in refusal(packed(raw))[2]


# -- one encoding ----------------------------------------------------------------------------------


def respelled():
    """Other bytes that protobuf's libraries read as the same bundle."""
    raw, content = wire()
    whole = packed(raw)
    begin = 2 + len(raw.content)
    assert len(raw.content) < 0x80, "its length has one byte"
    head, rest = whole[:begin], whole[begin:]
    yield "unknown field", whole + b"\x20\1"
    yield "fields in another order", rest + head
    yield "a field twice", head + whole
    yield "a long varint", bytes((head[0], head[1] | 0x80, 0)) + whole[2:]
    explicit = raw.content + b"\x18\0"
    yield (
        "a default value",
        stubs.Bundle(
            content=explicit, signature=raw.signature, envelopes=raw.envelopes
        ).SerializeToString(),
    )
    moved = b"\x12" + bytes((len(content.nonce),)) + content.nonce
    content.ClearField("nonce")
    yield (
        "content in another order",
        stubs.Bundle(
            content=moved + content.SerializeToString(),
            signature=raw.signature,
            envelopes=raw.envelopes,
        ).SerializeToString(),
    )


@pytest.mark.parametrize(("what", "raw"), list(respelled()), ids=lambda each: str(each)[:24])
def test_another_spelling_of_a_bundle_is_refused(what, raw):
    assert stubs.Bundle.FromString(raw), what
    assert refusal(raw)[0] == 400


@pytest.mark.parametrize("cut", [1, 7, 100, -1])
def test_a_bundle_that_ends_early_is_refused(cut):
    assert refusal(encode_bundle(bundle())[:cut])[0] == 400


def test_a_name_that_is_not_text_is_refused():
    raw, content = wire()
    content = content.SerializeToString().replace(b"chain-a", b"chain\xff\xff")
    raw.content = content
    assert "content cannot be decoded" in refusal(packed(raw))[2]
