"""Requests of RocketMQ consumers: pulls, positions, heartbeats, locks."""
