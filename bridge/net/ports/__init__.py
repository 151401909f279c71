"""A port of this broker, which accepts connections or refuses them, and probes of the ports of other brokers."""
