"""The wire protocols of Kafka and RocketMQ as pure functions: bytes to typed values and back.

The package does no I/O and reads no clock; its only state is the unfinished frame of a FrameReader. It imports no other
package of Duolog. For any input, the only exception is `ProtocolError`, and the memory that is used is limited by the
size of the input or by an argument.

    errors      ProtocolError: the peer has sent bytes that its protocol does not allow
    framing     FrameReader: the length-prefixed frames of both protocols
    foreign     names the protocol of a client that has connected to the wrong port
    checksum    the checksum of one record, for the comparison of copies
    kafka/      requests and responses, record batches, compression
    rocketmq/   remoting commands, headers, bodies, messages
    convert     converts messages between the two protocols
    names       converts the names of topics and groups between the two protocols

A Produce request of Kafka, from the bytes of the socket to the bytes of the answer:

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
