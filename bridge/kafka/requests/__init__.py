"""The parts that all Kafka requests use: connections, encoding, requests in slices, errors."""
