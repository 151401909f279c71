"""The broker: sockets, dispatch tables, coordinators, HTTP, command line, metrics.

This package puts the others together: it may import every other package, and no other package imports it. Its command:

    duolog serve --data /var/lib/duolog        # or: python -I -m duolog.bridge serve
    duolog topic list                          # admin commands use the HTTP port

In Python, `bridge.broker.Broker` takes options, a clock and an event loop, and opens ports:

    broker = Broker(load([], {"store.directory": "/tmp/d", "kafka.port": "0"}), SystemClock(), loop)
    await broker.start()                       # the log is recovered, the ports are open: broker.ready_line()
    await broker.stop()                        # requests are answered, the log is synced, the ports are closed

ARCHITECTURE.md says what is in which module.
"""
