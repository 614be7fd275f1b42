"""Lower bounds of a plan's cost: what only proves how good a plan is, and finds none."""
