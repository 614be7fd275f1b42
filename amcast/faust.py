"""Ordered streams for agents of Faust: the names of `multicast.faust` (docs/faust.md)."""

from multicast.faust import OrderedChannel, ordered

__all__ = ["OrderedChannel", "ordered"]
