"""Ordered streams for agents of Faust: `@app.agent(ordered(app, consumer="C1"))`.

Needs the extra [collectors], which brings faust-streaming. docs/faust.md says what is guaranteed.
"""

from topology import extra

with extra("collectors"):
    from multicast.faust.channel import OrderedChannel, ordered

__all__ = ["OrderedChannel", "ordered"]
