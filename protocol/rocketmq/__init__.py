"""RocketMQ's wire protocol: bytes to values and back. The package uses no sockets and no clock.

Bytes that RocketMQ does not allow raise `protocol.errors.ProtocolError`; no other exception is raised for any input.
The package may import msgspec, cramjam, `protocol.errors` and `protocol.kafka.compression`, whose codecs both protocols
use.

    remoting                  RemotingCommand: `decode` and `encode` a frame, `request` and `response` create a command
    codes                     RequestCode, ResponseCode
    headers, header           the header fields of each request and answer (`SendRequest`, `PullAnswer`, ...)
    request_headers           the header class of each request code
    bodies                    the JSON bodies (`HeartbeatData`, `TopicRouteData`, ...)
    names                     legal and reserved names of topics and groups
    json/                     JSON as fastjson reads and writes it
    filters/                  subscriptions by tag and by SQL92 condition
    messages/message          the record that a pull returns: `encode`, `stamp`, `decode`, `decode_all`
    messages/message_id       the offsetMsgId, and the encoding of hosts in records
    messages/properties       the property string of a message
    messages/batch            the body of a batch send
    messages/compression      compressed bodies
    messages/tags             tag hashes and tag subscriptions
    messages/receipt          receipts of popped messages
    messages/recall_handle    handles of delayed messages
    messages/flags            bits of sysFlag, pull requests and permissions

One send, as a producer does it; `payload` is the answer without its length:

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

A consumer calls `message.decode_all(answer.body)` for the answer of a pull to get the messages.
"""
