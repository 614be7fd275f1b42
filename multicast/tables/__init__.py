"""Ordered messages as tables: which offsets come at which positions, and the rows of a piece.

    order_walk   reads the order without payloads: pieces, runs of offsets with their positions
    between      reads it between two places
    slices       divides pieces into slices of one log, and reads one as rows
    arrow        rows as Arrow record batches; the only file that imports pyarrow
    options      what a user asks for, as Spark's options say it

Positions and cursors are those of `multicast.Consumer`; no other rule is applied here.
"""
