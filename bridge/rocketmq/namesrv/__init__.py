"""The name server, and registration with others."""
