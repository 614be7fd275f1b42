"""Tickets, a study: the order of a log written by its producers, beside the messages.

Nothing of the product uses this package. docs/tickets.md has the figures and the decision.

    delivery    what a consumer may hand out (pure); the rule itself is `multicast.tickets`
    world, epochs, processes, simulation, judge     random schedules with faults
    pushing                         pushed order records, the other candidate
    client, probe                   latency on a real broker
    saturated                       messages/s of the appenders
"""
