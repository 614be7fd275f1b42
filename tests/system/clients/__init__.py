"""Fabric's own clients, run unchanged against a node, and what they need besides it."""
