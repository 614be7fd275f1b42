"""Fabric's protobuf messages: the published stubs, and two of its Kafka orderer that they lack.

No other module imports `fabric_protos`. `KafkaMessage` and `KafkaMetadata` are in
ordering_osn/wire/multichain.proto.
"""

from __future__ import annotations

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
    from google.protobuf.message import DecodeError

    from ordering_osn.wire.multichain_pb2 import KafkaMessage, KafkaMetadata
