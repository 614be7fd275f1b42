"""Tickets: the order of a log written by its producers, beside the messages, in virtual time.

Nothing of the product uses this package. docs/tickets.md has what it showed.

    delivery    what a consumer may hand out (pure); the rule itself is `multicast.tickets`
    world, epochs, processes, simulation, judge     random schedules with faults
    machines, moves, scopes, exhaustive             every state at small scope
    skips                           offsets without a message, on a real broker
"""
