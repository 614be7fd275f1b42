"""The Spark pipeline: figures, losses and an independent check of the order, from Kafka's records.

    rule.py      which epochs there are, and `ticket_rule.py` which order records count, and each
                 message's place; written independently of `multicast`, without Spark
    session.py   a Spark session with the locked Kafka connector (`connector.lock`)
    sources.py   reads events, descriptions of arms, control topics and order streams
    figures.py   latencies, rates and losses
    judge.py     joins deliveries with their places in the order
    report.py    runs all of it for some runs and returns one document

Only this folder imports pyspark. `connector.lock` lists the jars that the connector needs in
addition to pyspark's. Connector, token provider and pyspark have the same version, the newest that
is published of all three.
"""
