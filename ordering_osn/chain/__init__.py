"""Turns the records of a chain into blocks. No I/O."""
