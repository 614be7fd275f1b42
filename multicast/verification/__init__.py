"""Checks of histories: the parts of the guarantees in `properties.py`, and replays of a cluster."""
