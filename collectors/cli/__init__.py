"""The commands `amcast collectors` and `amcast doctor`, and `amcast topology` on a cluster."""
