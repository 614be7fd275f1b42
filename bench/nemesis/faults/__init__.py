"""The kinds of faults under the main load."""
