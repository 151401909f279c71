"""Classic consumer groups of Kafka."""
