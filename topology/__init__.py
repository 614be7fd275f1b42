"""Plans, checks and draws trees of collectors for interests. Imports no other room.

    with extra("planner"):
        import pulp

A bare installation serves producers and consumers; all other packages belong to extras
(docs/install.md). `extra` turns the failure of such an import into a sentence.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(ModuleNotFoundError):
    """A package of one of amcast's extras is not installed; `extra` is the extra's name."""

    def __init__(self, package: str | None, extra: str) -> None:
        super().__init__(
            f"this needs the package {package}, which is not installed; "
            f"run: pip install 'amcast[{extra}]'",
            name=package,
        )
        self.extra = extra


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise `MissingExtra` for a package that is not installed and comes with the extra `name`."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name, name) from error
