"""The log on disk: frames by (queue, offset), state records, recovery. Knows no wire format and no network.

Imports nothing of the project. The main names:

    Store                    store/store.py               an open data directory and its parts
    Frame, StateRecord       store/unit.py                what is appended
    EntrySlot, Promise, Stored    store/entry.py               what append and read return
    StateLog                 store/state_log.py           commits state records and replays them into their owners
    Replayer                 store/recovery/replay.py     receives state records and frames at recovery
    StoreOptions             store/options.py
    Files, RealFiles         store/files.py               all access to the file system
    Flusher                  store/flusher.py             all threads

A first look:

    store = Store.open(RealFiles("data"), StoreOptions(), replayer, now_ms)
    queue = store.queue(queue_key(topic=1, queue_id=0))
    appended = store.append([Frame(queue, FIRST_FRAME_FORM, b"hello")], now_ms)
    store.when(appended.promise, lambda error: print(error or "durable"))
    store.write()                                  # at the end of each loop turn
    flusher.wake()                                 # starts the fsync; after it the promise is kept
    print([bytes(stored.frame) for stored in store.reader.read(queue, 0, max_bytes=1 << 20, until=queue.visible_end)])
    store.close(now_ms)
"""
