"""Segment objects: large ranges of the log that replace WAL objects, and the manifests that name them."""
