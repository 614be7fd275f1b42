"""Measurements of a deployment: what its operator does, and what its clients notice."""
