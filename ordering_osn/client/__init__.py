"""A client of transactions over several chains: makes bundles, sends them, follows their fate.

    messages.py   what goes to a node and comes back, as bytes and as values
    client.py     `Client`, for asyncio; tries the nodes in turn (node_turns.py)

docs/multichain-client.md shows how to use it.
"""

from ordering_osn.api.connection_errors import ConnectionLost, TlsRefused
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.client.client import Client
from ordering_osn.client.messages import (
    BundleIsVoid,
    BundlePlace,
    BundleRefused,
    CommittedBundle,
    DeliveredEntry,
    DeliveredEnvelope,
    ReportedFate,
    RequestRefused,
    Submitted,
)

__all__ = [
    "BundleIsVoid",
    "BundlePlace",
    "BundleRefused",
    "Client",
    "CommittedBundle",
    "ConnectionLost",
    "DeliveredEntry",
    "DeliveredEnvelope",
    "ReportedFate",
    "RequestRefused",
    "Submitted",
    "TlsFiles",
    "TlsRefused",
]
