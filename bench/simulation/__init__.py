"""The simulator's parts: random plans, schedules, a faulty cluster, processes, the judgement."""
