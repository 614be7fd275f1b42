"""What is installed: the version, and whether Python finds this project's packages or others.

The packages `multicast`, `topology`, `collectors` and `ordering_osn` have names that a user's
program may use, too. Python finds a file `topology.py` beside a user's script before ours.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from os.path import dirname, realpath

PACKAGE = "multicast"  # this file's own
NEEDED = "topology"  # what `import multicast` imports of the other packages
_ROOT = dirname(dirname(dirname(realpath(__file__))))  # noqa: PTH120 - pathlib loads slowly


class Shadowed(ImportError):
    """Python finds a file or folder of another project under the name of one of our packages."""


def location(package: str) -> str | None:
    """Give the file that `import package` runs or has run; None if there is none."""
    module = sys.modules.get(package)
    if module is not None:
        return getattr(module, "__file__", None)
    spec = find_spec(package)
    return spec.origin if spec is not None else None


def is_ours(package: str) -> bool:
    """Say whether `import package` finds the package that was installed with this one."""
    file = location(package)
    return file is not None and realpath(file) == realpath(f"{_ROOT}/{package}/__init__.py")


def refuse_shadowed(package: str) -> None:
    """Raise `Shadowed` if a user's file or folder hides our `package`; do not run that file."""
    file = location(package)
    if file is not None and not is_ours(package):
        raise Shadowed(
            f"amcast needs its own package '{package}' in {_ROOT}/{package}, but Python finds "
            f"{file.removesuffix('/__init__.py')} first; rename that file or folder",
            name=package,
            path=file,
        )


def version() -> str:
    """Give the version of the installed distribution; "unknown" if it is not installed."""
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - loads slowly
    from importlib.metadata import version as installed  # noqa: PLC0415

    try:
        return installed("amcast")
    except PackageNotFoundError:
        return "unknown"


refuse_shadowed(NEEDED)
