"""Collectors: they decide the order and append it to the order topic."""
