"""Requests of RocketMQ's tools."""
