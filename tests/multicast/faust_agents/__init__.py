"""Tests of the agents of Faust over ordered streams."""
