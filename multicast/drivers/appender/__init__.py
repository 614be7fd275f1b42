"""How records of several Kafka partitions become requests, idempotently: without a socket.

record_batch        the bytes of a batch
entries             what waits in the queue of a partition
partition_appends   order, sequence numbers and outcomes of one partition (pure)
link                the requests in flight to one broker
dispatcher          sends the records of all partitions over links, and takes answers
appender            the calls of an appender, whatever its links are
"""
