"""Both wire protocols as pure functions: bytes to typed values and back.

No I/O, no clock, no state but a stream's unfinished frame. Imports nothing of ours; `bridge` and `spark` import it.
Whatever bytes come in, the one exception that comes out is `ProtocolError`, and memory stays within what they truly
hold or within a limit that the caller gave.

    errors      ProtocolError, the peer's fault
    framing     FrameReader, the length-prefixed frames of both protocols
    kafka/      requests and responses, record batches, compression
    rocketmq/   remoting commands, headers, messages
    convert     a message of one family in the other's form; names: topics and groups likewise

A Kafka Produce request, from the socket's bytes to the answer's:

    reader = FrameReader(limit_bytes=100 << 20)
    for frame in reader.feed(data):
        header = api.decode_header(frame)
        request = api.decode_request(header.api_key, header.api_version, frame, header.body_at)
        done = []
        for topic, partition, records in request.partitions:
            batch = record_batch.check(records or b"")  # or raises InvalidBatch
            done.append(PartitionProduced(topic, partition, base_offset=append(batch, records)))
        transport.writelines(produce.encode_response(header.api_version, header.correlation_id, done))
"""
