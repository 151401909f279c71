"""RocketMQ's wire protocol: remoting frames and what is in them, as values. Pure: no sockets, no clock.

Bytes that RocketMQ does not allow raise `protocol.errors.ProtocolError`, and nothing else does. May import: msgspec,
cramjam, `protocol.errors`, `protocol.kafka.compression` (the codecs that both protocols share).

    remoting      RemotingCommand: `decode` and `encode` a frame, `request` and `response` build one
    codes         RequestCode, ResponseCode                  flags    bits of sysFlag, pull requests, permissions
    headers       the header fields of each request and answer, typed (`SendRequest`, `PullAnswer`, ...)
    bodies        the JSON bodies (`HeartbeatData`, `TopicRouteData`, ...), by `fastjson.read` and `fastjson.write`
    message       the record that a pull returns: `encode`, `stamp`, `decode`, `decode_all`
    message_id    the offsetMsgId, and hosts as records hold them
    properties    a message's property string               batch    the body of a batched send
    compression   bodies that are compressed                 tags     hashes and subscriptions
    names         legal and reserved topics and groups

A producer's side of one send (the frame goes out, `payload` is what came back, without its length):

    from duolog.protocol.rocketmq import headers, remoting
    from duolog.protocol.rocketmq.messages import properties
    from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode

    header = headers.SendRequestV2(
        producer_group="shop", topic="orders", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1700000000000, flag=0, properties=properties.encode({"KEYS": "order-1"}),
    )
    frame = remoting.encode(remoting.request(RequestCode.SEND_MESSAGE_V2, 1, header.to_ext(), b"two coffees"))
    ...
    answer = remoting.decode(payload)
    assert answer.is_response and answer.opaque == 1 and answer.code == ResponseCode.SUCCESS
    print(headers.SendAnswer.parse(answer.ext).queue_offset)

And a consumer's: `message.decode_all(answer.body)` of a pull gives the messages.
"""
