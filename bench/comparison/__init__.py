"""A workload's arms, measured side by side."""
