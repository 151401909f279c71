"""Decides what an exception of `obstore` means for the caller.

`obstore` reports the status of an answer only in the text of its exception, and raises AlreadyExistsError for any 409.
A 409 of S3 and Google is a conflict with another request that is in progress, and says nothing about the object; only
Azure's `BlobAlreadyExists` does. So status and code are read from the text:

    status or cause                 create           other requests    why
    304, 412                        EXISTS           refused           If-None-Match: * has failed
    409                             retry            retry             a request for the same key is in progress
    409 BlobAlreadyExists           EXISTS           retry             Azure
    408, 425, 429, 503              retry            retry             the store was busy and did nothing
    other 5xx                       unknown          retry             a gateway may have lost the store's answer
    no connection                   retry            retry             nothing was sent
    the certificate is not trusted  refused          refused           another CA or host name; nothing was sent
    a lost connection, a time-out   unknown          retry
    405, 501, NotImplemented        refused          refused           a create: no create-if-absent
    any other                       refused          refused           credentials, bucket, region, clock

No text of `obstore` is passed on, because answers to signed requests quote their signature.
"""

import re
from typing import NamedTuple

from duolog.store.objects.errors import ObjectStoreError, StoreRefused, StoreRetry, StoreUnknown

BUSY = (408, 425, 429, 503)
EXISTS = (304, 412)
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
# Of a request that deletes several objects, an object that was not deleted: with its code (S3) or status (Azure).
_NOT_DELETED = re.compile(r"request failed for key .* \(code: ([A-Za-z0-9]{1,64})\)")
# The reason in Azure's answer about one of them, whose code `obstore` leaves out.
_NO_CONTAINER = "The specified container does not exist"
_NO_CONNECTION = re.compile(r"kind: Connect\b")  # `kind: ConnectionReset` is of a connection that was established.
_UNTRUSTED = re.compile(r"\bInvalidCertificate\(")
_CODE = re.compile(r"<Code>([A-Za-z0-9._-]{1,64})</Code>")
_INSTANCE_ROLE = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata/identity")
BUSY_CODES = ("RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict", "ServerBusy")
# The codes of a 404 for a missing object. Other codes may mean a missing bucket or wrong credentials.
MISSING_CODES = ("", "NoSuchKey", "NoSuchObject", "BlobNotFound", "ResourceNotFound", "NotFound")
MISSING_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound", "NoSuchContainer")
NO_BUCKET = "the bucket does not exist: create it, or correct the name in --shared"
NO_RIGHTS = (
    "the credentials lack the right: allow GetObject, PutObject and DeleteObject for the prefix, and ListBucket for "
    "the bucket, or what the provider calls them"
)
WRONG_CREDENTIALS = (
    "the credentials are wrong: correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or the profile file, for Azure "
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, for Google GOOGLE_APPLICATION_CREDENTIALS"
)
NOT_AUTHORIZED = (
    "the store refuses the credentials or the address of this machine: correct AZURE_STORAGE_ACCOUNT_NAME and "
    "AZURE_STORAGE_ACCOUNT_KEY, or allow this machine in the network rules of the storage account"
)
NO_CREDENTIALS = (
    "no credentials were found: set them in the environment or in a profile file, or give the machine a role that has "
    "access to the bucket"
)
NO_TRUST = (
    "the certificate of the store is not trusted, or is for another host name: set the variable SSL_CERT_FILE to the "
    "file of its CA, and use its host name in shared.endpoint"
)
NO_CONDITIONAL_CREATE = (
    "the store has no create-if-absent (If-None-Match: *), by which one broker at a time writes: use a store, or a "
    "version of it, that has"
)
NOT_OFFERED = "the store does not have this request: use a store, or a version of it, that has"
# What an operator can do, by the code of the answer.
REMEDIES = {
    "AccessDenied": NO_RIGHTS,
    "AllAccessDisabled": NO_RIGHTS,
    "AuthorizationPermissionMismatch": NO_RIGHTS,
    "InvalidAccessKeyId": WRONG_CREDENTIALS,
    "SignatureDoesNotMatch": WRONG_CREDENTIALS,
    "AuthenticationFailed": WRONG_CREDENTIALS,
    "AuthorizationFailure": NOT_AUTHORIZED,  # Azure's network rules; Azurite: also a wrong account or key
    "XAdminUserNotFound": WRONG_CREDENTIALS,  # versitygw, with status 404
    "InvalidToken": WRONG_CREDENTIALS,
    "ExpiredToken": "the credentials have expired: renew them and start the broker again",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it, for example by NTP",
    "RequestExpired": "the clock of this machine is wrong: set it, for example by NTP",
    "AuthorizationHeaderMalformed": "the region is wrong: set shared.region to the bucket's",
    "IllegalLocationConstraintException": "the region is wrong: set shared.region to the bucket's",
    "PermanentRedirect": "the bucket is in another region or at another address: set shared.region or shared.endpoint",
    "EntityTooLarge": "the store does not take objects of this size",
    "QuotaExceeded": "the quota of the bucket is used up: raise it, or delete what is not needed",
    "XMinioStorageFull": "the store is full: give it more disk space",
} | dict.fromkeys(MISSING_BUCKET_CODES, NO_BUCKET)
BY_STATUS = {
    301: REMEDIES["PermanentRedirect"],
    307: REMEDIES["PermanentRedirect"],
    401: WRONG_CREDENTIALS,
    403: NO_RIGHTS,
    404: NO_BUCKET,
    507: "the store is full: give it more space",
}
UNKNOWN_REMEDY = "compare --shared, shared.endpoint and shared.region with the store's own settings"


class StoreAnswer(NamedTuple):
    """The status of an answer, 0 if none came, and the code in its body, which may be empty."""

    status: int
    code: str
    was_sent: bool = True  # False if the connection was not established
    is_about_credentials: bool = False  # The request that failed asked for credentials.
    is_trusted: bool = True  # False if the certificate of the store could not be verified.

    def __str__(self) -> str:
        return (
            f"{self.status} {self.code}".strip() if self.status else "no answer" if self.was_sent else "no connection"
        )


def answer_of(error: Exception) -> StoreAnswer:
    """Read status and code from an exception of `obstore`."""
    text = str(error)
    status = _STATUS.search(text)
    code = _CODE.search(text)
    if not_deleted := _NOT_DELETED.search(text):
        found = not_deleted[1]
        if not found.isdecimal():
            return StoreAnswer(200, found)
        return StoreAnswer(int(found), "ContainerNotFound" if _NO_CONTAINER in not_deleted[0] else "")
    return StoreAnswer(
        int(status[1]) if status else 301 if "BareRedirect" in text else 0,
        code[1] if code else "",
        was_sent=not _NO_CONNECTION.search(text),
        is_about_credentials=any(name in text for name in _INSTANCE_ROLE),
        is_trusted=not _UNTRUSTED.search(text),
    )


def says_exists(answer: StoreAnswer) -> bool:
    """Return whether the answer to a create says that the object exists."""
    return answer.status in EXISTS or (answer.status == 409 and answer.code == "BlobAlreadyExists")


def says_missing(answer: StoreAnswer) -> bool:
    """Return whether an answer with status 404 says that the object does not exist."""
    return answer.code in MISSING_CODES


def error_of(answer: StoreAnswer, what: str, *, is_create: bool) -> ObjectStoreError:
    """Return the exception for an answer that is no result. `what` is the operation and the key of its object."""
    if answer.is_about_credentials:
        return StoreRefused(f"{what}: {NO_CREDENTIALS}")
    if not answer.is_trusted:
        return StoreRefused(f"{what}: {NO_TRUST}")
    if not answer.was_sent or answer.status in (409, *BUSY) or answer.code in BUSY_CODES:
        return StoreRetry(f"{what}: {answer}: the request is tried again")
    if answer.status in (0, 500, 502, 504) or answer.code == "InternalError":
        if is_create:
            return StoreUnknown(f"{what}: {answer}: the broker checks whether the object was created")
        return StoreRetry(f"{what}: {answer}: the request is tried again")
    remedy = REMEDIES.get(answer.code) or BY_STATUS.get(answer.status, UNKNOWN_REMEDY)
    if answer.status in (405, 501) or answer.code == "NotImplemented":
        remedy = NO_CONDITIONAL_CREATE if is_create else NOT_OFFERED
    return StoreRefused(f"{what}: {answer}: {remedy}")
