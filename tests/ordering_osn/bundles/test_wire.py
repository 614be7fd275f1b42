"""The stubs are what the proto file says, and our own encoders write what the stubs write.

`protoc` is not at hand in the tests. So the proto file is read here, by its own grammar as far as
the file uses it, and compared with the descriptor inside the stubs.
"""

import keyword
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
)

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
TOKEN = re.compile(r'"[^"]*"|[\w.]+|[{}()=;]')
SCALARS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bytes", "string", "int32", "int64", "uint32", "uint64")
}


class ProtoFile:
    """A reader of the part of proto3 that the file uses; anything else is an error."""

    def __init__(self, text):
        self.tokens = TOKEN.findall(re.sub(r"//.*", "", text))
        self.file = FileDescriptorProto(name="ordering_osn/wire/multichain.proto")
        self.enums = set(re.findall(r"^enum (\w+)", text, re.MULTILINE))
        while self.tokens:
            getattr(self, f"read_{self.take()}")()

    def take(self, expected=None):
        token = self.tokens.pop(0)
        assert expected in (None, token), f"{token} where {expected} should be"
        return token

    def until(self, end):
        while self.tokens[0] != end:
            yield
        self.take(end)

    def read_syntax(self):
        self.take("=")
        self.file.syntax = self.take().strip('"')
        self.take(";")

    def read_package(self):
        self.file.package = self.take()
        self.take(";")

    def read_enum(self):
        enum = self.file.enum_type.add(name=self.take())
        self.take("{")
        for _ in self.until("}"):
            name = self.take()
            self.take("=")
            enum.value.add(name=name, number=int(self.take()))
            self.take(";")

    def read_message(self):
        message: DescriptorProto = self.file.message_type.add(name=self.take())
        self.take("{")
        for _ in self.until("}"):
            if self.tokens[0] == "oneof":
                self.take("oneof")
                message.oneof_decl.add(name=self.take())
                self.take("{")
                for _ in self.until("}"):
                    self.read_field(message).oneof_index = len(message.oneof_decl) - 1
            else:
                self.read_field(message)

    def read_field(self, message):
        repeated = self.tokens[0] == "repeated"
        if repeated:
            self.take("repeated")
        kind = self.take()
        field: FieldDescriptorProto = message.field.add(name=self.take())
        field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type = field.TYPE_ENUM if kind in self.enums else field.TYPE_MESSAGE
            field.type_name = f".{self.file.package}.{kind}"
        self.take("=")
        field.number = int(self.take())
        self.take(";")
        return field

    def read_service(self):
        service = self.file.service.add(name=self.take())
        self.take("{")
        for _ in self.until("}"):
            self.take("rpc")
            method: MethodDescriptorProto = service.method.add(name=self.take())
            method.input_type, streams = self.read_type()
            if streams:
                method.client_streaming = True
            self.take("returns")
            method.output_type, streams = self.read_type()
            if streams:
                method.server_streaming = True
            self.take(";")

    def read_type(self):
        self.take("(")
        streams = self.tokens[0] == "stream"
        if streams:
            self.take("stream")
        name = self.take()
        self.take(")")
        return f".{self.file.package}.{name}", streams


def described():
    generated = FileDescriptorProto()
    stubs.DESCRIPTOR.CopyToProto(generated)
    for message in generated.message_type:
        for field in message.field:
            field.ClearField("json_name")  # protoc adds it
    return generated


def test_the_stubs_are_those_of_the_proto_file():
    assert ProtoFile(PROTO.read_text()).file == described()


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
        bundle={
            "bundle": stubs.Bundle.FromString(encode_bundle(made)),
            "config_sequences": stamps,
        }
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
