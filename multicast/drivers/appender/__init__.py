"""How records of several Kafka partitions become requests, idempotently: without a socket.

record_batch        the bytes of a batch
entries             what waits in the queue of a partition
partition_appends   order, sequence numbers and outcomes of one partition (pure)
outbox              what goes in the next request (pure)
"""
