"""Adopting a topic that exists: what is there, what will be made, and what its readers will see."""
