"""The planner: the cost of a tree, searches for the cheapest one, and lower bounds."""
