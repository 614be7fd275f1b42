"""Test doubles for applications: the names of `multicast.testing` (docs/testing-your-code.md)."""

from multicast.testing import MemorySystem, OrderViolation, Report, system

__all__ = ["MemorySystem", "OrderViolation", "Report", "system"]
