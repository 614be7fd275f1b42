"""`amcast` in the process of a test."""

from multicast.cli.commands import build


def amcast(*words):
    """Run a command in this process; raises its error."""
    words = [str(word) for word in words]
    build(words)(words, prog_name="amcast", standalone_mode=False)
