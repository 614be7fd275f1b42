"""The exhaustive search: every interleaving of the real cores in small worlds.

`scopes` are the worlds, `machines` what moves in them, `moves` the steps, `explorer` the search.
Nothing of the product uses this package. docs/testing.md says what it shows.
"""
