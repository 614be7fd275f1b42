"""A fuzz target: a decoder, valid inputs for it, and the exceptions that it may raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.fuzz.mutation import Shape


class Disagreement(Exception):
    """Two readers disagree on the same bytes, or an encoder wrote other bytes than were read."""


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """`decode` takes any bytes and may raise only `raises`; `share` weighs its part of inputs."""

    name: str
    decode: Callable[[bytes], object]
    raises: tuple[type[BaseException], ...]
    valid: Sequence[bytes]
    shape: Shape
    share: int = 10

    def holds(self, raw: bytes) -> bool:
        """Decode; whether the bytes were readable. Lets unexpected exceptions through."""
        try:
            self.decode(raw)
        except self.raises:
            return False
        return True


def require(holds: object, what: str) -> None:
    """Raise `Disagreement` unless it holds."""
    if not holds:
        raise Disagreement(what)
