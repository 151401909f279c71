"""The broker: sockets, dispatch tables, coordinators, HTTP, command line, metrics.

The only composition root: it may import every other package, and no other package imports it. From the outside:

    duolog serve --data /var/lib/duolog        # or: python -I -m duolog.bridge serve
    duolog topic list                          # admin commands, over the HTTP port

From the inside, `bridge.broker.Broker` is the whole: options and a clock in, listening ports out.

    broker = Broker(load([], {"store.directory": "/tmp/d", "kafka.port": "0"}), SystemClock(), loop)
    await broker.start()                       # recovered and listening: broker.ready_line()
    await broker.stop()                        # drained, flushed, closed

Where to find what: ARCHITECTURE.md.
"""
