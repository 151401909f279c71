"""What a request to the object store may end with, besides its result.

    outcome of a create     what is known                        what the caller does
    Creation.CREATED        this object is the key's             goes on
    Creation.EXISTS         an object has the key                reads it, for it may be its own: after an
                                                                 unknown outcome, or if the network repeated
                                                                 the request
    StoreRetry              this request changed nothing         tries again
    StoreUnknown            nothing                              reads the key back and compares the content
    StoreRefused            this request changed nothing         reports the message: an operator must act

Requests that only read, and deletions, can be repeated, so they raise StoreRetry where a create raises StoreUnknown.
"""

from duolog.store.errors import StoreError


class ObjectStoreError(StoreError):
    """Base class. The message names the operation, the object and the reason, and contains no credentials."""


class StoreRetry(ObjectStoreError):
    """The store did not do the request, or the request can be repeated without harm: 409, 429, 503, no connection."""


class StoreUnknown(ObjectStoreError):
    """No answer came, or one that does not say whether the object was created: a time-out, a lost connection, 500."""


class StoreRefused(ObjectStoreError):
    """The store refused the request, and will refuse it again until an operator acts. The message says how."""


class UnreliableStore(StoreRefused):
    """The store does not keep what the log relies on: of several creates of one key, exactly one must win."""
