"""The HTTP port: the JSON API, metrics and health."""
