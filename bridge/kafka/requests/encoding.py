"""Answers with arrays of unknown length, which are encoded in steps between which the loop may turn."""

from collections.abc import Generator
from typing import Any

from duolog.bridge.kafka.context import Describing
from duolog.bridge.kafka.requests.refused_items import with_refused
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.protocol.kafka.api_messages import encode_frame
from duolog.protocol.kafka.response import AnswerTooLarge, encode_steps
from duolog.store.entry import Promise


def encode_in_steps(context: Describing, request: KafkaRequest, entity: Any) -> Generator[int, None, list[bytes]]:
    """Encode a response whose arrays may be `Elements`, and count its errors; return the pieces of its body.

    Raises AnswerTooLarge beyond `kafka.answer_bytes_max`.
    """
    bytes_max = context.options.kafka.answer_bytes_max
    if request.refused is not None:
        entity = with_refused(request, entity)
    try:
        return (yield from encode_steps(entity, bytes_max, request.count_errors))
    except AnswerTooLarge:
        raise AnswerTooLarge(
            f"the answer to a request of API {request.api_key} is larger than kafka.answer_bytes_max={bytes_max}"
        ) from None


def make_answer(request: KafkaRequest, pieces: list[bytes], promise: Promise | None) -> Answer:
    """Make an answer of the pieces that `encode_in_steps` returned."""
    return Answer(encode_frame(request.api_key, request.version, request.correlation_id, pieces), promise)


def run_all(steps: Steps) -> Answer | None:
    """Run all steps at once, which is right only for an answer that is known to be small."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: Answer | None = done.value
            return answer
