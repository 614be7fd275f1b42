"""The nemesis: injects faults into a whole system, and judges the histories of its clients."""
