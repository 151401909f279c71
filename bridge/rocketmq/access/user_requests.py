"""Users, which tools create, change, delete and list: AUTH_CREATE_USER (3001) to AUTH_LIST_USER (3005).

They are the users of all protocols. Only an answer to a super user has passwords, with which `mqadmin copyUser` creates
the same users on another broker. Source: `AdminBrokerProcessor.java`.
"""

from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import UntilCalled, Wait, WaitingSteps
from duolog.bridge.records.security import UserSet
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.security.secret_box import CannotDecrypt
from duolog.bridge.security.session import Session
from duolog.bridge.security.user_changes import change_user, hashed, hashing, remove_user, set_user
from duolog.bridge.security.users import User
from duolog.protocol.rocketmq.auth import ListUsersRequest, UserInfo, UserRequest
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.remoting import RemotingCommand

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"


def create_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer AUTH_CREATE_USER, which is refused if the user exists."""
    check_enabled(context)
    name, wanted = UserRequest.parse(command.ext).username, read_body(command, UserInfo)
    if not wanted.password:
        raise refused("password: a user must have one")
    return answer_in_steps(
        connection, command, _create(context, connection.session, command, name, wanted), outlives_connection=True
    )


def _create(
    context: RocketMQContext, session: Session | None, command: RemotingCommand, name: str, wanted: UserInfo
) -> WaitingSteps[Answer]:
    is_super = bool(_is_super(wanted))
    made = yield from _hashed(context, name, wanted, is_super=is_super)
    return answer(command, promise=set_user(context.security, session, made, context.clock.now_ms(), is_new=True))


def update_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer AUTH_UPDATE_USER: change the password, or the type."""
    check_enabled(context)
    name, wanted = UserRequest.parse(command.ext).username, read_body(command, UserInfo)
    context.security.users.known(name)
    return answer_in_steps(
        connection, command, _update(context, connection.session, command, name, wanted), outlives_connection=True
    )


def _update(
    context: RocketMQContext, session: Session | None, command: RemotingCommand, name: str, wanted: UserInfo
) -> WaitingSteps[Answer]:
    is_super = _is_super(wanted)
    made = (yield from _hashed(context, name, wanted)) if wanted.password else None
    promise = change_user(context.security, session, name, context.clock.now_ms(), made=made, is_super=is_super)
    return answer(command, promise=promise)


def _hashed(
    context: RocketMQContext, name: str, wanted: UserInfo, *, is_super: bool = False
) -> Generator[Wait, Any, UserSet]:
    """Return the record of a user, which a thread makes. Raises UserError, StoreError."""
    make = hashing(context.security, name, wanted.password or "", context.clock.now_ms(), is_super=is_super)
    return hashed((yield UntilCalled(partial(context.security.executor.submit, make))))


def _is_super(wanted: UserInfo) -> bool | None:
    """Return whether the user shall be a super user; None: the request does not say so. Raises RequestRefused."""
    if wanted.user_status not in (None, "", ENABLED):
        raise refused(f"userStatus: only {ENABLED} is supported, got {wanted.user_status!r:.60}; delete the user")
    if not wanted.user_type:
        return None
    if wanted.user_type not in (SUPER, NORMAL):
        raise refused(f"userType: expected {SUPER} or {NORMAL}, got {wanted.user_type!r:.60}")
    return wanted.user_type == SUPER


def delete_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_DELETE_USER. The rules that name the user stay."""
    check_enabled(context)
    name = UserRequest.parse(command.ext).username
    return answer(command, promise=remove_user(context.security, connection.session, name, context.clock.now_ms()))


def get_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_GET_USER. Tools take an answer without a body as "there is no such user"."""
    check_enabled(context)
    user = context.security.users.get(UserRequest.parse(command.ext).username)
    return answer(command) if user is None else answer(command, body=_info(context, connection, user))


def list_users(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_LIST_USER with the users whose names contain `filter`."""
    check_enabled(context)
    part = ListUsersRequest.parse(command.ext).filter or ""
    users = [user for user in context.security.users.all() if part in user.name]
    return answer(command, body=fastjson.write([_info(context, connection, user) for user in users]))


def _info(context: RocketMQContext, connection: RocketMQConnection, user: User) -> UserInfo:
    password = None
    if connection.session is not None and connection.session.is_super and user.record.encrypted_secret:
        with suppress(CannotDecrypt):
            password = context.security.box.decrypt(user.record.encrypted_secret, user.name)
    user_type = SUPER if user.is_super else NORMAL
    return UserInfo(username=user.name, password=password, user_type=user_type, user_status=ENABLED)


def check_enabled(context: RocketMQContext) -> None:
    """Refuse a request while `security.enabled` is off: anybody could leave a user or a rule behind for later."""
    if not context.security.is_enabled:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "security.enabled is off; add users with `duolog user add --data DIR`"
        )


def refused(reason: str) -> RequestRefused:
    """Return the refusal of a value."""
    return RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
