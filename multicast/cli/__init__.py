"""The command `amcast`, and the verbs of this room."""
