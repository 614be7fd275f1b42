"""The change from one epoch to the next: apply, drain, recovery."""
