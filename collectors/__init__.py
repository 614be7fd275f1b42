"""Collectors: they decide the order of the logs and append it to the order topic."""
