"""The types of the answers about dead letters, as those in `answers.py`."""

from typing import Annotated, TypedDict

from msgspec import Meta

from duolog.bridge.http.openapi.answers import Content


def _is(text: str) -> Meta:
    return Meta(description=text)


class Origin(TypedDict):
    topic: str | None
    queue: int | None
    offset: int | None
    message_id: str | None


class FailedAttempt(TypedDict):
    attempt: Annotated[int, _is("The number of the attempt, from 1.")]
    failed_ms: Annotated[int, _is("When the broker learned that the attempt had failed.")]
    consumer: Annotated[str | None, _is("The address of the consumer's connection; null: it is not known.")]


# The class has more than 15 fields because a dead letter has those of a message and of its failures.
class DeadLetter(Content):
    offset: int
    sent_ms: Annotated[int, _is("When the producer sent the message, by the clock of the producer.")]
    stored_ms: Annotated[int, _is("When the message became a dead letter.")]
    reason: Annotated[str | None, _is("`attempts`, `given-up`, `expired` or `too-large`.")]
    attempts: int
    failed_attempts: Annotated[
        list[FailedAttempt],
        _is("The last 16 attempts at most; without those that orderly consumers repeated by themselves."),
    ]
    expired_ms: int | None
    origin: Annotated[Origin, _is("Where the message was first.")]
    tag: str | None
    is_redriven: bool
    is_original_stored: Annotated[bool, _is("Its origin still has the message.")]


class DeadLetters(TypedDict):
    group: str
    topic: str
    next: Annotated[int | None, _is("The `offset` of the next request; null: there are no more.")]
    dead_letters: list[DeadLetter]


class Redriven(TypedDict):
    group: str
    redriven: int
