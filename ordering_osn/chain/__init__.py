"""A chain's records become blocks. No I/O."""
