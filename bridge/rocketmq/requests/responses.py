"""Functions with which handlers read requests and make answers."""

from collections.abc import Sequence
from typing import TypeVar

from duolog.bridge.net.answers import Answer
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import Body
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise

BodyT = TypeVar("BodyT", bound=Body)


def answer(
    asked: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: Buffer | Sequence[Buffer] | Body = b"",
    promise: Promise | None = None,
) -> Answer:
    """Encode the answer to `asked`; it leaves once the log keeps the promise."""
    raw = fastjson.write(body) if isinstance(body, Body) else body
    return Answer(remoting.encode(remoting.response(asked, code, remark, ext, raw)), promise)


def read_body(asked: RemotingCommand, form: type[BodyT]) -> BodyT:
    """Parse the JSON body of a request. Raises IllegalJson."""
    assert isinstance(asked.body, memoryview), "a request that was decoded"
    return fastjson.read(asked.body, form)
