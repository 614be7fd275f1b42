"""Order records, and what writes them: docs/protocol.md. Pure, but for the appender.

encoding    the records, and their bytes
rule        which records of an order stream count, and what they order
stream      a stream as readers open it, by plan and collector
producer    when a producer owes tickets
appender    a producer's appends with their tickets
collector   what a collector writes; `balance` judges debts, `relay` repeats the parent's order
recovery    what a recovery appends to the streams of the next epoch
"""
