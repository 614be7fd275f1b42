"""From one epoch to the next: apply, drain, recovery."""
