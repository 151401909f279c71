"""The OpenAPI document of the HTTP API: `document.py` makes it."""
