"""The gRPC services of a node: their names, and the size of what passes."""

BROADCAST, RECEIPTS = "orderer.AtomicBroadcast", "amcast.osn.Receipts"
MULTI_CHAIN = "amcast.osn.MultiChain"
MESSAGE_BYTES_MAX = 100 << 20  # Fabric's, in both directions; a node may receive less
INFO_TRAILER = "amcast-info-bin"  # the trailer with the reason why a request for blocks ended
SENT_SIZE = ("grpc.max_send_message_length", MESSAGE_BYTES_MAX)
SIZES = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), SENT_SIZE]
