"""The parts of a consumer that talk to Kafka."""
