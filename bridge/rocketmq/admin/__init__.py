"""Handlers of requests of RocketMQ's tools."""
