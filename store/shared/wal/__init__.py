"""The log of a stream in the object store: the format of its objects, which of them count, and fences."""
