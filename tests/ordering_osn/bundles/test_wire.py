"""The stubs are what the proto file says, and our own encoders write what the stubs write.

`protoc` is not at hand in the tests. So the descriptor inside the stubs is written here as a proto
file, and compared with ours but for comments and blanks.
"""

import keyword
import re
from itertools import groupby
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from ordering_osn.chain.bundles import metadata, saved
from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
    encode_config_marker,
)
from ordering_osn.chain.bundles.rule import RuleState, VoidReason
from ordering_osn.chain.records import Unparseable, decode
from ordering_osn.wire import multichain_pb2 as stubs
from tests.ordering_osn.helpers.bundles import AB, Log, bundle, bundle_record, marker

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "ordering_osn/wire/multichain.proto"
BLOCK = re.compile(r"^(?:message|enum|service) \w+ \{(?:\}|.*?^\})", re.MULTILINE | re.DOTALL)


def dense(text):
    """Leave out comments, and blanks that do not part two words."""
    return re.sub(r"\s*([{}();=])\s*", r"\1", re.sub(r"//.*", "", text))


def block(kind, name, statements):
    return f"{kind} {name}{{{''.join(statements)}}}"


def kind_of(type_name):
    return type_name.rpartition(".")[2]


def field(described):
    repeated = "repeated " if described.label == described.LABEL_REPEATED else ""
    scalar = FieldDescriptorProto.Type.Name(described.type).removeprefix("TYPE_").lower()
    return (
        f"{repeated}{kind_of(described.type_name) or scalar} {described.name}={described.number};"
    )


def message(described):
    """A message; the fields of a oneof stand in its braces."""
    statements = []
    for number, fields in groupby(
        described.field, lambda each: each.oneof_index if each.HasField("oneof_index") else -1
    ):
        inside = map(field, fields)
        oneof = number >= 0 and described.oneof_decl[number].name
        statements += [block("oneof", oneof, inside)] if oneof else inside
    return block("message", described.name, statements)


def value(described):
    return f"{described.name}={described.number};"


def method(described):
    takes = "stream " * described.client_streaming + kind_of(described.input_type)
    gives = "stream " * described.server_streaming + kind_of(described.output_type)
    return f"rpc {described.name}({takes})returns({gives});"


def described():
    generated = FileDescriptorProto()
    stubs.DESCRIPTOR.CopyToProto(generated)
    return generated


def test_the_stubs_are_those_of_the_proto_file():
    file, text = described(), PROTO.read_text()
    assert dense(f'syntax = "{file.syntax}";') in dense(text)
    assert f"package {file.package};" in text
    assert sorted(dense(each) for each in BLOCK.findall(text)) == sorted(
        [
            *map(message, file.message_type),
            *(
                block("enum", e.name, (f"{v.name}={v.number};" for v in e.value))
                for e in file.enum_type
            ),
            *(block("service", s.name, map(method, s.method)) for s in file.service),
        ]
    )


def test_the_typed_stubs_have_the_same_messages_and_fields():
    """Mypy reads these; nothing runs them."""
    typed = (ROOT / "ordering_osn/wire/multichain_pb2.pyi").read_text()
    for message in described().message_type:
        fields = [each.name for each in message.field if not keyword.iskeyword(each.name)]
        names = ", ".join(f'"{name}"' for name in fields)
        comma = "," if len(fields) == 1 else ""
        assert f"class {message.name}(_message.Message):" in typed
        if names:
            assert f"__slots__ = ({names}{comma})" in typed


def test_the_reasons_of_the_rule_are_those_of_the_wire():
    wire = {name.removeprefix("VOID_REASON_"): number for name, number in stubs.VoidReason.items()}
    assert wire.pop("UNSPECIFIED") == 0
    assert wire == {reason.name: reason.value for reason in VoidReason}


# -- our encoders and the stubs --------------------------------------------------------------------


def test_a_bundle_is_what_the_stubs_write():
    for expiry in (0, 1, 2**63 - 1):
        made = bundle(("chain-a", "chain-b", "chain-c"), expiry=expiry)
        content = stubs.BundleContent(
            parts=[{"chain": part.chain, "sha256": part.digest} for part in made.parts],
            nonce=made.nonce,
            expiry=expiry,
            submitter=made.submitter,
        )
        wire = stubs.Bundle(
            content=content.SerializeToString(),
            signature=made.signature,
            envelopes=[part.envelope for part in made.parts],
        )
        assert encode_bundle(made) == wire.SerializeToString()


@pytest.mark.parametrize("stamps", [(0, 0), (1, 2**64 - 1), (300, 0)])
def test_a_bundle_record_is_what_the_stubs_write(stamps):
    made = bundle()
    wire = stubs.LogRecord(
        bundle={"bundle": stubs.Bundle.FromString(encode_bundle(made)), "config_sequences": stamps}
    )
    assert encode_bundle_record(BundleRecord(made, stamps)) == wire.SerializeToString()


@pytest.mark.parametrize(("block", "sequence"), [(0, 0), (0, 1), (2**64 - 1, 7)])
def test_a_marker_is_what_the_stubs_write(block, sequence):
    wire = stubs.LogRecord(
        config_marker={"chain": "chain-a", "config_block": block, "sequence": sequence}
    )
    ours = encode_config_marker(ConfigMarker("chain-a", block, sequence))
    assert ours == wire.SerializeToString()


def test_a_state_is_what_the_stubs_write():
    log = Log(window_max=2)
    empty = stubs.LogState(version=1, chains=AB, window_max=2)
    assert saved.encode_state(log.rule.state) == empty.SerializeToString()
    log.introduce(sequence=3)
    counted = [bundle(nonce=number) for number in range(3)]
    for each in counted:
        assert log.fate(bundle_record(each, 3, 3)) == "COUNTS"
    wire = stubs.LogState(
        version=1,
        chains=AB,
        offset_next=5,
        markers=[{"chain": chain, "config_block": 30, "sequence": 3} for chain in AB],
        counted=3,
        window_max=2,
    )
    assert saved.encode_state(log.rule.state) == wire.SerializeToString()


def test_a_blocks_metadata_is_what_the_stubs_write():
    chains = ("chain-a", "chain-b", "chain-c")
    made = bundle(chains)
    states = [saved.encode_state(RuleState(set_, 7)) for set_ in (chains[:2], chains)]
    heads = (
        metadata.SetHead(chains[:2], states[0]),
        metadata.SetHead(chains, states[1], previous_block=300),
    )
    parts = tuple(metadata.metadata_of(made, "chain-b", index) for index in (0, 300))
    digests = [made.parts[0].digest, made.parts[2].digest]
    wire = stubs.BlockBundles(
        parts=[
            {"index": i, "bundle_id": made.id, "chains": chains, "sibling_sha256": digests}
            for i in (0, 300)
        ],
        sets=[
            {"state": stubs.LogState.FromString(head.state), "previous_block": head.previous_block}
            for head in heads
        ],
    )
    ours = metadata.encode_block_bundles(metadata.BlockBundles(parts, heads))
    assert ours == wire.SerializeToString()
    none = metadata.encode_block_bundles(metadata.BlockBundles())
    assert none == stubs.BlockBundles().SerializeToString() == b""


def test_a_node_without_bundles_ignores_their_records():
    for raw in (bundle_record(bundle()), marker("chain-a")):
        with pytest.raises(Unparseable, match="without content"):
            decode(raw)
