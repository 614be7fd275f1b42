"""Conditional messages: they take effect only if nothing that matches came after a position."""
