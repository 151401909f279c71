"""Proves the object store on obstore: URLs, profiles, what each answer means, and that creates are exclusive."""

from __future__ import annotations

import asyncio
import stat
from collections import Counter
from pathlib import Path

import pytest

from duolog.store.files import DIRECTORY_MODE, FILE_MODE
from duolog.store.objects.answers import NO_RIGHTS, answer_of, error_of, says_exists
from duolog.store.objects.counted import CountedObjects
from duolog.store.objects.credentials import Profile, read_profile
from duolog.store.objects.errors import ObjectStoreError, StoreRefused, StoreRetry, StoreUnknown
from duolog.store.objects.interface import Creation, ObjectStore
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import Location, ObjectStoreOptions, parse_location
from duolog.store.objects.remote import RemoteObjects
from duolog.store.objects.self_test import check_creates

BUCKET_LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", Location("s3", "bucket", "")),
        ("s3://bucket/some/prefix/", Location("s3", "bucket", "some/prefix")),
        ("gs://bucket/a", Location("gs", "bucket", "a")),
        ("az://container/a", Location("az", "container", "a")),
        ("file:///var/lib/duolog/", Location("file", "", "/var/lib/duolog")),
        ("memory://", Location("memory", "", "")),
    ],
)
def test_a_url_has_a_scheme_a_bucket_and_a_prefix(url: str, location: Location) -> None:
    assert parse_location(url) == location


@pytest.mark.parametrize(
    "url", ["", "bucket/prefix", "https://bucket", "s3://", "s3:///prefix", "file://host/x", "file:///", "s3://b?x=y"]
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"use|URL"):
        parse_location(url)


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(StoreRefused) as refused:
        parse_location("s3://key:secret@bucket/prefix")
    assert "s3://bucket/prefix" in str(refused.value)
    assert "secret" not in str(refused.value)


KEYS = "[default]\naws_access_key_id = A\naws_secret_access_key = S\n[other]\naws_access_key_id=B\n"


@pytest.mark.parametrize(
    ("environment", "profile"),
    [
        ({}, Profile("A", "S", "", "eu-north-1")),
        ({"AWS_ACCESS_KEY_ID": "C"}, Profile(region="eu-north-1")),
        ({"AWS_PROFILE": "work"}, Profile("D", "T", "U", "eu-west-1")),
        ({"HOME": "/nowhere"}, Profile()),
    ],
)
def test_keys_come_from_profile_files_unless_the_environment_has_them(
    tmp_path: Path, environment: dict[str, str], profile: Profile
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(KEYS)
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = eu-north-1\n[profile work]\nregion = eu-west-1\naws_access_key_id = D\n"
        "aws_secret_access_key = T\naws_session_token = U\n"
    )
    assert read_profile({"HOME": str(tmp_path)} | environment) == profile


@pytest.mark.parametrize("name", ["other", "missing"])
def test_a_profile_without_keys_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "keys").write_text(KEYS)
    environment = {"AWS_PROFILE": name, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "HOME": str(tmp_path)}
    with pytest.raises(StoreRefused, match=f"'{name}' of AWS_PROFILE"):
        read_profile(environment)


def test_a_damaged_profile_file_is_refused_without_quoting_it(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("aws_secret_access_key = SECRET\n")
    with pytest.raises(StoreRefused) as refused:
        read_profile({"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")})
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "environment", "is_unsigned"),
    [
        ("", {}, True),
        ("https://store.example:9000", {}, True),
        ("http://store.example:9000", {}, False),
        ("HTTP://store.example:9000", {}, False),
        ("", {"AWS_ENDPOINT_URL": "http://store.example"}, False),
        ("https://store.example", {"AWS_UNSIGNED_PAYLOAD": "false"}, None),
    ],
)
def test_the_content_of_s3_requests_is_signed_where_no_tls_protects_it(
    endpoint: str, environment: dict[str, str], is_unsigned: bool | None
) -> None:
    opened = open_objects(ObjectStoreOptions("s3://bucket", endpoint), environment | {"HOME": "/nowhere"})
    assert opened._store.config.get("unsigned_payload") == (None if is_unsigned is None else str(is_unsigned).lower())


def answered(status: int, code: str = "") -> Exception:
    """Return an exception as obstore words it."""
    body = f"<Error><Code>{code}</Code><StringToSign>signed text</StringToSign></Error>"
    return RuntimeError(f"Error performing PUT http://s3/b/k - Server returned non-2xx status code: {status} X: {body}")


@pytest.mark.parametrize(
    ("error", "of_create", "of_read"),
    [
        (answered(409, "ConditionalRequestConflict"), StoreRetry, StoreRetry),
        (answered(503, "SlowDown"), StoreRetry, StoreRetry),
        (answered(429), StoreRetry, StoreRetry),
        (answered(400, "RequestTimeout"), StoreRetry, StoreRetry),
        (answered(500, "InternalError"), StoreUnknown, StoreRetry),
        (answered(504), StoreUnknown, StoreRetry),
        (RuntimeError("error sending request ... kind: Request"), StoreUnknown, StoreRetry),
        (RuntimeError("error sending request ... kind: Connect,"), StoreRetry, StoreRetry),
        (RuntimeError("kind: Interrupted ... BodyWrite ... kind: ConnectionReset,"), StoreUnknown, StoreRetry),
        (answered(403, "SignatureDoesNotMatch"), StoreRefused, StoreRefused),
        (answered(404, "NoSuchBucket"), StoreRefused, StoreRefused),
        (answered(501, "NotImplemented"), StoreRefused, StoreRefused),
        (answered(418), StoreRefused, StoreRefused),
    ],
)
def test_each_answer_says_what_the_caller_does(
    error: Exception, of_create: type[ObjectStoreError], of_read: type[ObjectStoreError]
) -> None:
    answer = answer_of(error)
    assert not says_exists(answer)
    raised = error_of(answer, "create s3://b/k", is_create=True)
    assert type(raised) is of_create
    assert type(error_of(answer, "read s3://b/k", is_create=False)) is of_read
    assert str(raised).startswith("create s3://b/k: ")
    assert "signed text" not in str(raised)


@pytest.mark.parametrize("error", [answered(412), answered(304), answered(409, "BlobAlreadyExists")])
def test_an_object_exists_by_these_answers_alone(error: Exception) -> None:
    assert says_exists(answer_of(error))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("RequestTimeTooSkewed", "clock"),
        ("NoSuchBucket", "create it"),
        ("AccessDenied", "PutObject"),
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("AuthenticationFailed", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("AuthorizationFailure", "network rules"),
        ("ExpiredToken", "renew"),
        ("NotImplemented", "If-None-Match"),
        ("AuthorizationHeaderMalformed", "shared.region"),
        ("SomethingNew", "shared.endpoint"),
    ],
)
def test_a_refusal_names_the_remedy(code: str, remedy: str) -> None:
    assert remedy in str(error_of(answer_of(answered(400, code)), "create s3://b/k", is_create=True))


@pytest.mark.parametrize("error", [answered(405, "MethodNotAllowed"), answered(501), answered(400, "NotImplemented")])
def test_only_a_create_that_the_store_does_not_have_is_a_store_without_create_if_absent(error: Exception) -> None:
    answer = answer_of(error)
    assert "create-if-absent (If-None-Match: *)" in str(error_of(answer, "create s3://b/k", is_create=True))
    for what in ("delete s3://b/k", "list s3://b/wal/"):
        refused = error_of(answer, what, is_create=False)
        assert type(refused) is StoreRefused
        assert str(refused).endswith(
            ": the store does not have this request: use a store, or a version of it, that has"
        )


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        (
            "Generic S3 error: DeleteObjects request failed for key a/b: Denied (code: AccessDenied)",
            StoreRefused,
            NO_RIGHTS,
        ),
        ("Generic S3 error: DeleteObjects request failed for key a/b: Oh (code: InternalError)", StoreRetry, "200 Int"),
        ("Generic S3 error: DeleteObjects request failed for key a/b: Slow (code: SlowDown)", StoreRetry, "200 Slow"),
        (
            "Generic MicrosoftAzure error: Bulk delete request failed for key a/b: X (code: 403)",
            StoreRefused,
            NO_RIGHTS,
        ),
        ("Generic MicrosoftAzure error: Bulk delete request failed for key a/b: X (code: 409)", StoreRetry, "409: "),
        (
            "Object at location a/b not found: Bulk delete request failed for key a/b: The specified container does "
            "not exist. (code: 404)",
            StoreRefused,
            "404 ContainerNotFound: the bucket does not exist: create it",
        ),
    ],
)
def test_object_that_one_request_for_several_did_not_delete_is_reported(
    text: str, expected: type[ObjectStoreError], reason: str
) -> None:
    raised = error_of(answer_of(RuntimeError(f"{text}\n\nDebug source: ...")), "delete s3://b/k", is_create=False)
    assert type(raised) is expected
    assert reason in str(raised)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_store_keeps_objects_as_the_protocol_says(tmp_path: Path, scheme: str) -> None:
    url = f"file://{tmp_path}/bucket" if scheme == "file" else "memory://"

    async def main() -> None:
        objects: ObjectStore = open_objects(ObjectStoreOptions(url))
        created = await asyncio.gather(*(objects.create("wal/2", b"%d" % number * 1000) for number in range(32)))
        assert created.count(Creation.CREATED) == 1
        winner = b"%d" % created.index(Creation.CREATED) * 1000
        assert await objects.get("wal/2", BUCKET_LIMIT) == winner
        assert await objects.get_range("wal/2", 998, 1000) == winner[998:1998]
        assert await objects.get_range("wal/2", len(winner) + 5, 10) == b""
        assert await objects.get("wal/3", BUCKET_LIMIT) is None
        assert await objects.get_range("wal/3", 0, 1) is None
        with pytest.raises(StoreRefused, match=r"wal/2.*more than the 10"):
            await objects.get("wal/2", 10)
        for key in ("wal/10", "wal/1", "other", "walk/1", "wal/a/b"):
            await objects.create(key, memoryview(b"x"))
        assert [each.key for each in await objects.list("wal/")] == ["wal/1", "wal/10", "wal/2", "wal/a/b"]
        assert [each.key for each in await objects.list("wal/", "wal/1", limit=2)] == ["wal/10", "wal/2"]
        assert [tuple(each) for each in await objects.list("walk/")] == [("walk/1", 1)]
        await objects.delete(["wal/2", "missing", "wal/1"])
        assert [each.key for each in await objects.list("")] == ["other", "wal/10", "wal/a/b", "walk/1"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        "Error performing GET http://s3/b/k - Server returned non-2xx status code: 416 X: <Code>InvalidRange</Code>",
        "Generic MicrosoftAzure error: Wanted range starting at 10, but object was only 10 bytes long",
    ],
)
def test_a_range_from_the_end_of_an_object_is_empty(text: str) -> None:
    class Refuses:
        async def get_range_async(self, key: str, *, start: int, length: int) -> object:
            raise RuntimeError(text)

    objects = RemoteObjects(Refuses(), Location("az", "b", ""), ObjectStoreOptions("az://b"))
    assert asyncio.run(objects.get_range("k", 10, 5)) == b""


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_an_object_is_made_of_its_parts(tmp_path: Path, scheme: str) -> None:
    written = bytearray(b"0123456789" * 1000)
    parts = (b"head", memoryview(written)[:5000].toreadonly(), memoryview(written)[5000:])

    async def main() -> None:
        objects = open_objects(ObjectStoreOptions("memory://" if scheme == "memory" else f"file://{tmp_path}/bucket"))
        assert await objects.create("wal/1", parts) is Creation.CREATED
        assert await objects.create("wal/1", (b"other",)) is Creation.EXISTS
        assert await objects.get("wal/1", BUCKET_LIMIT) == b"head" + written

    asyncio.run(main())


def test_a_directory_has_no_empty_directories_of_objects_that_were_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        objects: ObjectStore = open_objects(ObjectStoreOptions(f"file://{tmp_path}/bucket"))
        await check_creates(objects, "run")
        await objects.create("wal/1", b"x")

    asyncio.run(main())
    assert [each.name for each in (tmp_path / "bucket").iterdir()] == ["wal"]


def test_a_directory_and_its_files_are_closed_to_other_users_and_made_with_the_first_object(tmp_path: Path) -> None:
    async def main() -> None:
        objects = open_objects(ObjectStoreOptions(f"file://{tmp_path}/bucket"))
        assert await objects.get("wal/1", BUCKET_LIMIT) is None
        assert await objects.get_range("wal/1", 0, 1) is None
        assert await objects.list("") == []
        await objects.delete(["wal/1"])

    async def create() -> None:
        objects = open_objects(ObjectStoreOptions(f"file://{tmp_path}/bucket"))
        await objects.create("wal/1", b"x")
        await objects.put("log/1", [b"x"])

    asyncio.run(main())
    assert not [*tmp_path.iterdir()]
    asyncio.run(create())
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    files = {"bucket/wal/1": FILE_MODE, "bucket/log/1": FILE_MODE}
    assert modes == {"bucket": DIRECTORY_MODE, "bucket/wal": DIRECTORY_MODE, "bucket/log": DIRECTORY_MODE} | files


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="the directory cannot be made or read: "):
        open_objects(ObjectStoreOptions(f"file://{tmp_path}/file/bucket"))


def test_requests_and_bytes_are_counted_by_operation_and_outcome() -> None:
    async def main() -> CountedObjects:
        objects = CountedObjects(open_objects(ObjectStoreOptions("memory://")), Counter(), Counter())
        await objects.create("a", b"12345")
        await objects.create("a", b"1")
        await objects.get("a", 10)
        await objects.get_range("a", 1, 2)
        await objects.get("b", 10)
        with pytest.raises(StoreRefused):
            await objects.get("a", 1)
        await objects.list("")
        await objects.delete(["a"])
        return objects

    counted = asyncio.run(main())
    assert counted.requests == {
        ("create", "ok"): 1,
        ("create", "exists"): 1,
        ("get", "ok"): 2,
        ("get", "missing"): 1,
        ("get", "refused"): 1,
        ("list", "ok"): 1,
        ("delete", "ok"): 1,
    }
    assert counted.content_bytes == {"create": 6, "get": 7}
