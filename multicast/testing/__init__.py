"""Test doubles for applications: a whole system in memory, and what its check raises.

docs/testing-your-code.md shows how to use it. The pytest fixtures are in
`multicast/local/pytest_plugin.py`.
"""

from multicast.properties import OrderViolation, Report
from multicast.testing.memory_system import MemorySystem, system

__all__ = ["MemorySystem", "OrderViolation", "Report", "system"]
