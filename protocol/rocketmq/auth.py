"""The headers and JSON bodies of requests about users and ACL 2.0 policies.

Source: `UserInfo.java`, `AclInfo.java`, `CreateUserRequestHeader.java`, `ListAclsRequestHeader.java` and their like.
"""

import msgspec

from duolog.protocol.rocketmq.bodies import Body
from duolog.protocol.rocketmq.header import Header

# -- Headers


class UserRequest(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str


class ListUsersRequest(Header):
    """AUTH_LIST_USER."""

    filter: str | None = None


class SubjectRequest(Header):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL."""

    subject: str


class DeleteAclRequest(Header):
    """AUTH_DELETE_ACL."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequest(Header):
    """AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None


# -- Bodies


class UserInfo(Body):
    """A user: `user_type` is Super or Normal, `user_status` is enable or disable. Absent fields are not changed."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntry(Body):
    """The policy for one resource, such as `Topic:orders*`; `decision` is Allow or Deny."""

    resource: str
    actions: list[str] = msgspec.field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class Policy(Body):
    """Policies of one type: Custom, or Default, which Apache RocketMQ asks if no custom one matches."""

    policy_type: str | None = None
    entries: list[PolicyEntry] = msgspec.field(default_factory=list)


class AclInfo(Body):
    """All policies of a subject, `User:NAME`."""

    subject: str | None = None
    policies: list[Policy] = msgspec.field(default_factory=list)
