"""The gRPC services of a node: their names, and the size of what passes."""

BROADCAST, RECEIPTS = "orderer.AtomicBroadcast", "amcast.osn.Receipts"
MULTI_CHAIN = "amcast.osn.MultiChain"
MESSAGE_BYTES_MAX = 100 << 20  # Fabric's, in both directions; a node may receive less
INFO_TRAILER = "amcast-info-bin"  # the trailer with the reason why a request for blocks ended


def sizes(received: int = MESSAGE_BYTES_MAX) -> list[tuple[str, int]]:
    """Give gRPC's options for the sizes of messages."""
    return [
        ("grpc.max_receive_message_length", received),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ]
