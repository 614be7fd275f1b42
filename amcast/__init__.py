"""Genuine atomic multicast on Apache Kafka: messages to sets of partitions, one order for all.

    from amcast import Producer, Consumer, aio, testing

The names are those of `multicast`, and the classes are the very ones: this package only gives them
the name of the distribution. They are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import multicast

if TYPE_CHECKING:
    from amcast import aio, testing
    from multicast import *  # noqa: F403

    __version__: str
else:
    __all__ = list(multicast.__all__)
    __all__ += ["aio", "testing"]

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for."""
        if name in ("aio", "testing"):
            return import_module(f"amcast.{name}")
        if name != "__version__" and name not in __all__:
            raise AttributeError(f"module 'amcast' has no attribute {name!r}")
        value = globals()[name] = getattr(multicast, name)
        return value

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
