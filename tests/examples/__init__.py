"""Tests of what stands in `examples/`: each example runs end to end."""
