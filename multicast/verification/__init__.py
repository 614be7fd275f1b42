"""Histories judged: what the guarantees are made of."""
