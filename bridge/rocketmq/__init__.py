"""The RocketMQ protocol: requests of producers, consumers and tools, and the embedded name server.

    request_table.py   the handler of each request code
    context.py         `RocketMQContext`: what handlers use
    requests/          connections, admission limits, answers
    producing/, consuming/, pop/, retry/, admin/, namesrv/   handlers and their state, a folder for each kind of request
    groups/            the members of groups

This package may import all of `bridge` except `bridge.kafka` and `bridge.http`.
"""
