"""The events that the shared log reports to the broker, and the questions that it asks the broker about its clients."""

from typing import Final, NamedTuple, Protocol


class Deposed(NamedTuple):
    """This broker is no longer the owner, or its copy can no longer follow. It must stop answering and join again."""

    reason: str


class StoreTrouble(NamedTuple):
    """A request to the store failed and is repeated. The reason says whether it fails until an operator acts."""

    reason: str


class StoreAnswers(NamedTuple):
    """A request has succeeded after a StoreTrouble."""


Event = Deposed | StoreTrouble | StoreAnswers


class Clients(Protocol):
    """The clients of one broker."""

    @property
    def heard_mono_ms(self) -> int:
        """When this broker got the last request of a client."""

    @property
    def is_owner_cut_off(self) -> bool:
        """Whether clients reach this standby, and this standby does not reach the owner's ports."""


class NoClients:
    """The clients of a broker without ports."""

    heard_mono_ms = 0
    is_owner_cut_off = False


NO_CLIENTS: Final = NoClients()
