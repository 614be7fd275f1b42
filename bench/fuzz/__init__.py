"""Fuzzing: bytes that nobody of ours wrote, given to everything that decodes bytes."""
