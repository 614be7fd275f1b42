"""Local Kafka clusters on the loopback, and pytest fixtures for them."""
