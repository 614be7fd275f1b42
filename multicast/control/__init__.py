"""The control topics: plans and the ends of epochs in `A.topology`, checkpoints in `A.collectors`.

Other rooms import from here, not from the modules:

    topics          the names of Kafka topics and partitions
    documents       decodes the parts of a statement; one error for all that is malformed
    codecs          encodes statements as keys and values
    state           what all statements say together; no I/O
    sources         which stream is read in which epoch; no I/O
    advertised      what instances of collectors say of themselves; no I/O
    losses          what logs and streams have lost, as collectors state it; no I/O
    checkpoints     which checkpoint a stream is opened at
    reader          reads both topics from a cluster
    follower        reads them again and again, for the parts of a producer
    topic_identity  refuses topics that are not the ones that a plan was made for
"""

from multicast.control.advertised import NOBODY
from multicast.control.checkpoints import best_checkpoint
from multicast.control.codecs import (
    ends_record,
    loss_record,
    lost_stream_record,
    markers_record,
    plan_record,
    running_record,
)
from multicast.control.documents import MACHINE_BYTES, PROCESS_BYTES, StatusPage
from multicast.control.follower import ControlFollower
from multicast.control.reader import ControlReader, plans_alone
from multicast.control.sources import source_of
from multicast.control.state import ControlState, genesis
from multicast.control.topics import (
    ORDER_GONE,
    SINGLE_LOG,
    collectors_partition,
    control_partition,
    control_topics,
    groups_topic,
    log_partition,
    order_topic,
    own_topics,
    sentinel_topic,
    stream_partition,
)
