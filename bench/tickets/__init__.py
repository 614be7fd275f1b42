"""Every interleaving of tickets at small scope, with the real cores: `python -m bench.exhaustive`.

Nothing of the product uses this package. docs/tickets.md has what it showed.
"""
