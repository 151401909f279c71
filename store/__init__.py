"""The log on disk: frames by (queue, offset), state records, recovery. Knows no wire form and no network.

Imports nothing of the project. The main names:

    Store                    store/store.py      append, promises, reading, retention, checkpoints
    Replayer                 store/recovery/replay.py     who owns the state that the log holds
    Frame, State, Promise    store/entry.py      what crosses the border
    StoreOptions             store/options.py
    Files, RealFiles         store/files.py      the one door to the disk
    Flusher                  store/flusher.py    the only threads

A first look:

    store = Store.open(RealFiles("data"), StoreOptions(), replayer, now_ms)
    queue = store.queue(queue_key(topic=1, queue_id=0))
    appended = store.append([Frame(queue, FIRST_FRAME_FORM, b"hello")], now_ms)
    store.when(appended.promise, lambda error: print(error or "kept"))
    store.write()                                  # at the end of each turn of the loop
    flusher.wake()                                 # the fsync; then the promise is kept
    print([bytes(stored.frame) for stored in store.read(queue, 0, max_bytes=1 << 20, until=queue.visible_end)])
    store.close(now_ms)
"""
