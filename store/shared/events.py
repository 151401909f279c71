"""What the shared log reports to the broker."""

from typing import NamedTuple


class OwnerKnown(NamedTuple):
    """A follower has read a fence: who owns the stream. `claim` is what the owner says of itself, such as addresses."""

    writer: bytes
    epoch: int
    claim: bytes


class Deposed(NamedTuple):
    """This broker is no longer the owner, or its copy can no longer follow: it must stop answering, and join again."""

    reason: str


class StoreTrouble(NamedTuple):
    """A request to the store failed and is repeated; if `needs_operator`, it will fail until an operator acts."""

    reason: str
    needs_operator: bool


class StoreAnswers(NamedTuple):
    """A request has succeeded after `StoreTrouble`."""


Event = OwnerKnown | Deposed | StoreTrouble | StoreAnswers
