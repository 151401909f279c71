"""Handlers of requests of RocketMQ producers."""
