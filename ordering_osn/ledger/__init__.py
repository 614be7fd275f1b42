"""The folder of a chain's blocks."""
