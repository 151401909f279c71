"""Requests of RocketMQ producers."""
