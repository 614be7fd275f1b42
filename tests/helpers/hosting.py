"""One process of `amcast collectors run` for all collectors of a topic, or for some."""

from pathlib import Path

from bench.harness.processes import CollectorProcess


def hosting(bootstrap, topic, driver, folder: Path, *, nodes=(), options=()) -> CollectorProcess:
    """Start it; a context manager that ends it. `options` are further ones of the command."""
    words = [word for name in nodes for word in ("--node", name)]
    place = ["-b", bootstrap, "-t", topic, "--driver", driver]
    return CollectorProcess(folder / f"{topic}.log", *place, *words, *options)
