"""Simulations of brokers that share a log, over many seeds, and bugs that they must find: `make simulate`."""
