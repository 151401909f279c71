"""The HTTP port: the JSON API, metrics, health checks, and the OpenAPI document."""
