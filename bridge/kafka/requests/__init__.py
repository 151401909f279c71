"""What every Kafka request passes: connection, header, slices, errors."""
