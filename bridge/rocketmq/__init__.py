"""The RocketMQ side of the broker: clients, consumers, producers, tools, and the embedded name server.

    request_table.py   which request code is served by which handler
    context.py         what handlers use: the named collaborators of a `RocketMQContext`
    requests/          the connection, its limits, and the form of answers
    producing/, consuming/, pop/, retry/, admin/, namesrv/   the handlers and their state, by family

May import all of `bridge` but `bridge.kafka` and `bridge.http`.
"""
