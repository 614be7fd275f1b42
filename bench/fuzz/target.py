"""What is fuzzed: a decoder, valid inputs for it, and the exceptions that may come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.fuzz.mutation import Shape


class Disagreement(Exception):
    """Two readers of the same bytes came to two answers, or one wrote other bytes than it read."""


@dataclass(frozen=True, slots=True)
class Target:
    """`decode` takes any bytes; only `raises` may come out. `share` of all inputs is its."""

    name: str
    decode: Callable[[bytes], object]
    raises: tuple[type[BaseException], ...]
    valid: Sequence[bytes]
    shape: Shape
    share: int = 10

    def holds(self, raw: bytes) -> bool:
        """Decode; whether the bytes were readable. Raises what must not come out."""
        try:
            self.decode(raw)
        except self.raises:
            return False
        return True


def require(holds: object, what: str) -> None:
    """Raise `Disagreement` where it does not hold."""
    if not holds:
        raise Disagreement(what)
