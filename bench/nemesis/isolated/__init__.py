"""Faults that have a topic or a broker of their own."""
