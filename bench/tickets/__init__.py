"""Tickets, a study: the order of a log written by its producers, beside the messages.

Nothing of the product uses this package. docs/tickets.md has the figures and the decision.

    rule        which records of an order stream count, and what they order (pure)
    collector   what a collector writes under that rule (pure)
    producer    when a producer owes a ticket (pure)
    delivery    what a consumer may hand out (pure)
    world, processes, simulation    random schedules with faults, and the judge
    wire        one Produce request for several partitions
    pushing                         pushed order records, the other candidate
    client, probe                   latency on a real broker
"""
