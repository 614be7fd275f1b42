"""Baselines for comparison: Algorithm 1 of the poster, and the poster's whole scheme."""
