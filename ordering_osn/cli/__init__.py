"""The commands of `amcast osn`."""
