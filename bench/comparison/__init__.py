"""Measures the arms of a workload against each other."""
