"""What is installed: the version, and whether Python finds this project's packages or others."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from os.path import dirname, realpath

_ROOT = dirname(dirname(dirname(realpath(__file__))))  # noqa: PTH120 - pathlib loads slowly


def is_ours(package: str) -> bool:
    """Say whether `import package` finds the package that was installed with this one.

    A user's program may have a package `bench`, too.
    """
    module = sys.modules.get(package) or find_spec(package)
    file = getattr(module, "__file__", None) or getattr(module, "origin", None)
    return file is not None and realpath(file) == realpath(f"{_ROOT}/{package}/__init__.py")


def version() -> str:
    """Give the version of the installed distribution; "unknown" if it is not installed."""
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - loads slowly
    from importlib.metadata import version as installed  # noqa: PLC0415

    try:
        return installed("amcast")
    except PackageNotFoundError:
        return "unknown"
