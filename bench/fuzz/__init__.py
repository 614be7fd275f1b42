"""Fuzzing: gives mutated bytes to every decoder of bytes from other programs."""
