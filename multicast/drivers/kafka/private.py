"""What this driver uses of kafka-python beyond its public interface, in one place.

Public are the package itself, `kafka.errors` and `kafka.admin`. A release may change all that is
below: `tests/multicast/drivers/kafka/test_private.py` says what it changed, and whom that
concerns. Nothing but these imports may live here.
"""

from __future__ import annotations

from kafka import codec
from kafka.consumer.fetcher import FetchSessionHandler
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    IsolationLevel,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
)
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields, UnsignedVarInt32
from kafka.record import MemoryRecords
