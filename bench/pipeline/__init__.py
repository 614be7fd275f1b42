"""The Spark pipeline: figures, losses and a second opinion on the order, from what stands in Kafka.

    rule.py      which order records count and where each message stands; written anew, no Spark
    session.py   a Spark with the locked Kafka connector (`connector.lock`)
    sources.py   what is read: events, descriptions of arms, control topics, order streams
    figures.py   latencies, rates and losses
    judge.py     each message's place in the order, joined with the deliveries
    live.py      the same figures by Structured Streaming
    report.py    all of it for some runs, as one document

This folder is the one door to pyspark. `connector.lock` holds the jars that the connector needs
beside those that pyspark brings; connector, token provider and pyspark are of one version, the
newest of which all three are published.
"""
