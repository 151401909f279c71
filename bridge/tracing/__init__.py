"""Tracing: spans of the messages whose producers sent a `traceparent`, exported by OTLP. Off unless an endpoint is set.

    trace_context.py    the producer's `traceparent`, in Kafka's headers and RocketMQ's properties
    traced_messages.py  which messages in the queues are traced, so that reads of them can be found
    tracing.py          makes the spans of appends and reads
    span_queue.py       spans that wait for their export
    export.py           starts the export
    otlp.py             the thread that exports; the only module that imports OpenTelemetry

The spans of a message are siblings: the parent of each is the producer's span, as the message has it.

    publish   from the arrival of the message until its answer may be sent
    prepare   the same for a RocketMQ half message; `publish` follows when it is committed
    delay     from the time at which a delayed message was sent until its delivery
    deliver   from the delivery until it is as durable as its topic asks
    fetch     from the read request, or the append of the message if that is later, until the answer
"""
