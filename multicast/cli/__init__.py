"""The command `amcast`, and the verbs on messages, histories and local clusters."""
