"""Genuine atomic multicast on Apache Kafka: messages to sets of partitions, one order for all.

A *partition* is an address here, "P1". A *log* is the Kafka partition that stores the messages to
one set of them, each message once. docs/glossary.md explains all words.
"""

from multicast.consumer import Consumer
from multicast.cursor import Cursor
from multicast.delivery import Batch, Message
from multicast.errors import AmcastError
from multicast.keyed import Keys, keys
from multicast.messages import MessageID
from multicast.producer import Producer
from multicast.receipts import KeyedReceipts, Receipt, Receipts

__all__ = [
    "AmcastError",
    "Batch",
    "Consumer",
    "Cursor",
    "KeyedReceipts",
    "Keys",
    "Message",
    "MessageID",
    "Producer",
    "Receipt",
    "Receipts",
    "keys",
]
