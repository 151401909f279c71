"""Users, which tools create, change, delete and list: AUTH_CREATE_USER (3001) to AUTH_LIST_USER (3005).

They are the users of all protocols. Only an answer to a super user has passwords, with which `mqadmin copyUser` creates
the same users on another broker. Source: `AdminBrokerProcessor.java`.
"""

from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import UntilCalled, WaitingSteps
from duolog.bridge.records.security import UserSet
from duolog.bridge.rocketmq.access.gate import no_permission
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.secret_box import CannotUnseal
from duolog.bridge.security.session import Session
from duolog.bridge.security.users import ONLY_SUPER, User, UserError
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
        connection, command, _set(context, connection.session, command, name, wanted, None), outlives_connection=True
    )


def update_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer AUTH_UPDATE_USER: change the password, or the type."""
    check_enabled(context)
    name, wanted = UserRequest.parse(command.ext).username, read_body(command, UserInfo)
    user = context.security.users.get(name)
    if user is None:
        raise _unknown(name)
    return answer_in_steps(
        connection, command, _set(context, connection.session, command, name, wanted, user), outlives_connection=True
    )


def _set(
    context: RocketMQContext,
    session: Session | None,
    command: RemotingCommand,
    name: str,
    wanted: UserInfo,
    known: User | None,
) -> WaitingSteps[Answer]:
    security, now_ms = context.security, context.clock.now_ms()
    is_super = _is_super(wanted, known)
    record = None if known is None else known.record
    if wanted.password:
        make = partial(new_record, name, wanted.password, security.box, security.options, now_ms)
        made = yield UntilCalled(partial(security.executor.submit, partial(_outcome, make)))
        if not isinstance(made, UserSet):
            raise refused(str(made))
        record = made
    assert record is not None, "a new user has a password"
    _check_super(context, session, name, makes_super=is_super)
    now = security.users.get(name)
    groups = () if now is None else now.record.groups
    try:
        promise = security.users.set(
            msgspec.structs.replace(record, is_super=is_super, groups=groups), now_ms, is_new=known is None
        )
    except UserError as error:
        raise refused(str(error)) from error
    return answer(command, promise=promise)


def _outcome(make: partial[UserSet]) -> UserSet | UserError:
    """Return an error instead of raising it, because a thread would report it as a fault."""
    try:
        return make()
    except UserError as error:
        return error


def _check_super(context: RocketMQContext, session: Session | None, name: str, *, makes_super: bool = False) -> None:
    if not context.security.authorizer.may_change_user(session, name, makes_super=makes_super):
        raise no_permission(ONLY_SUPER)


def _is_super(wanted: UserInfo, known: User | None) -> bool:
    if wanted.user_status not in (None, "", ENABLED):
        raise refused(f"userStatus: only {ENABLED} is supported, got {wanted.user_status!r:.60}; delete the user")
    if not wanted.user_type:
        return known is not None and known.is_super
    if wanted.user_type not in (SUPER, NORMAL):
        raise refused(f"userType: expected {SUPER} or {NORMAL}, got {wanted.user_type!r:.60}")
    return wanted.user_type == SUPER


def delete_user(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer AUTH_DELETE_USER. The rules that name the user stay."""
    check_enabled(context)
    name = UserRequest.parse(command.ext).username
    _check_super(context, connection.session, name)
    try:
        promise = context.security.users.remove(name, context.clock.now_ms())
    except UserError as error:
        raise RequestRefused(ResponseCode.USER_NOT_EXIST, str(error)) from error
    return answer(command, promise=promise)


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
    if connection.session is not None and connection.session.is_super and user.record.sealed_secret:
        with suppress(CannotUnseal):
            password = context.security.box.unseal(user.record.sealed_secret, user.name)
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


def _unknown(name: str) -> RequestRefused:
    return RequestRefused(ResponseCode.USER_NOT_EXIST, f"there is no user {name[:255]}")
