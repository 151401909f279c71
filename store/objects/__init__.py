"""Object storage: whole objects by key, created once, read, listed and deleted, for `--shared` and for backups.

    objects = open_objects(ObjectStoreOptions("s3://bucket/prefix", region="eu-central-1"))
    if await objects.create("wal/7", unit) is Creation.EXISTS:
        found = await objects.get("wal/7", bytes_max=16 << 20)     # another writer's, or this one's: compare

`interface.py` has the Protocol that callers are typed with, `errors.py` what each outcome means for them. `opening.py`
finds the store for a URL, and imports `obstore` when it is called; `remote.py` sends the requests. `transfers.py`
repeats requests of commands, and reads large objects in parts.
"""
