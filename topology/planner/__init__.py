"""The planner: searches, bounds and the cost of a tree."""
