"""Kafka clusters of our own on the loopback, and as pytest fixtures."""
