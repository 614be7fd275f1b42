"""Faults made on purpose against a whole system, and the judgement of what it did."""
