"""The jobs of `duolog pipeline run`."""
