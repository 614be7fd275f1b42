"""Fabric's protobuf messages: the published stubs, and two of its Kafka orderer that they lack.

No other module imports `fabric_protos`. `KafkaMessage` and `KafkaMetadata` have the fields of
Fabric v1.4's protos/orderer/kafka.proto; of `KafkaMetadata` the fields from 15 on are ours: the
cursor, the serialized `BlockBundles` and `BlockEntries` of ordering_osn/wire/multichain.proto.
"""

from __future__ import annotations

from typing import Any

from topology import extra

with extra("osn"):
    from fabric_protos.common.common_pb2 import (
        Block,
        BlockHeader,
        BlockMetadataIndex,
        ChannelHeader,
        Envelope,
        Header,
        HeaderType,
        LastConfig,
        Metadata,
        MetadataSignature,
        OrdererBlockMetadata,
        Payload,
        SignatureHeader,
        Status,
    )
    from fabric_protos.common.configtx_pb2 import (
        Config,
        ConfigEnvelope,
        ConfigGroup,
        ConfigPolicy,
        ConfigSignature,
        ConfigUpdate,
        ConfigUpdateEnvelope,
        ConfigValue,
    )
    from fabric_protos.common.configuration_pb2 import (
        BlockDataHashingStructure,
        Capabilities,
        Consortium,
        HashingAlgorithm,
        OrdererAddresses,
    )
    from fabric_protos.common.policies_pb2 import (
        ImplicitMetaPolicy,
        Policy,
        SignaturePolicy,
        SignaturePolicyEnvelope,
    )
    from fabric_protos.msp.identities_pb2 import SerializedIdentity
    from fabric_protos.msp.msp_config_pb2 import FabricMSPConfig, MSPConfig
    from fabric_protos.msp.msp_principal_pb2 import (
        CombinedPrincipal,
        MSPIdentityAnonymity,
        MSPPrincipal,
        MSPRole,
        OrganizationUnit,
    )
    from fabric_protos.orderer.ab_pb2 import (
        BroadcastResponse,
        DeliverResponse,
        SeekInfo,
        SeekNewest,
        SeekNextCommit,
        SeekOldest,
        SeekPosition,
        SeekSpecified,
    )
    from fabric_protos.orderer.configuration_pb2 import (
        BatchSize,
        BatchTimeout,
        ChannelRestrictions,
        ConsensusType,
        KafkaBrokers,
    )
    from fabric_protos.peer.configuration_pb2 import ACLs, AnchorPeers
    from fabric_protos.peer.transaction_pb2 import Transaction
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "orderer"
_INT64, _UINT64, _BYTES, _MESSAGE, _INT32 = (
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_UINT64,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_MESSAGE,
    FieldDescriptorProto.TYPE_INT32,
)


def _describe(file: FileDescriptorProto, name: str, *fields: tuple[str, int, Any]) -> Any:
    message: DescriptorProto = file.message_type.add(name=name)
    for field, number, kind in fields:
        added = message.field.add(
            name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
        if isinstance(kind, str):
            added.type, added.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            added.type = kind
    return message


def _kafka() -> tuple[Any, Any]:
    file = FileDescriptorProto(name="orderer/kafka.proto", package=_PACKAGE, syntax="proto3")
    _describe(
        file,
        "KafkaMessageRegular",
        ("payload", 1, _BYTES),
        ("config_seq", 2, _UINT64),
        ("class", 3, _INT32),  # an enum on the wire is an int32: UNKNOWN 0, NORMAL 1, CONFIG 2
        ("original_offset", 4, _INT64),
    )
    _describe(file, "KafkaMessageTimeToCut", ("block_number", 1, _UINT64))
    _describe(file, "KafkaMessageConnect", ("payload", 1, _BYTES))
    message = _describe(
        file,
        "KafkaMessage",
        ("regular", 1, "KafkaMessageRegular"),
        ("time_to_cut", 2, "KafkaMessageTimeToCut"),
        ("connect", 3, "KafkaMessageConnect"),
    )
    message.oneof_decl.add(name="Type")
    for field in message.field:
        field.oneof_index = 0
    _describe(
        file,
        "KafkaMetadata",
        ("last_offset_persisted", 1, _INT64),
        ("last_original_offset_processed", 2, _INT64),
        ("last_resubmitted_config_offset", 3, _INT64),
        ("cursor", 15, _BYTES),
        ("bundles", 16, _BYTES),
        ("entries", 17, _BYTES),
    )
    pool = DescriptorPool()
    pool.Add(file)
    return tuple(
        GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("KafkaMessage", "KafkaMetadata")
    )


KafkaMessage, KafkaMetadata = _kafka()
