"""The simulator's parts: random plans and schedules, a faulty cluster, processes, and the judge."""
