"""The command `amcast`, also as `python -m amcast`."""

import sys


def main() -> None:
    """Run `amcast`. What cannot be imported is one sentence on stderr, and exit code 2."""
    try:
        from multicast.cli.main import main as run  # noqa: PLC0415 - this is what may fail
    except ImportError as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
