"""The kinds of faults that the nemesis injects."""
