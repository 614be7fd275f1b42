"""The in-memory driver: a verified fake of Kafka."""
