"""One queue of the log: its offsets and its index. INTERFACE ONLY until the store's builder fills it.

class Queue:  (slots)
    key: int                 # topic number << 16 | queue id
    start_offset: int        # log start: the first offset that may be read
    end_offset: int          # the next offset to be assigned
    visible_end: int         # what anybody may see: written end (async) or durable end (sync)
    durable: bool            # this queue's topic promises fsync before the answer; set by the bridge from the topic's config
    size_bytes: int          # of the live frames
"""
