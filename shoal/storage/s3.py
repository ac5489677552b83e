"""A store in a bucket of any S3 server.

Guarantees what `object_store` says, as far as the server keeps what S3 promises (`provider_check`
tells); besides: one connection pool and a bounded number of threads per store; all attempts of a
call under one deadline; nothing is taken from the environment, from profiles or from an instance's
role, and a store without credentials never sends any; no redirect is followed; secrets are in no
message.

Does not verify digests. boto3 and botocore enter here and nowhere else: they sign requests and read
answers. `s3_transport` carries them; `s3_bucket`, `s3_upload` and `s3_download` decide which ones
are made.
"""

import functools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import boto3.session
import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.credentials import CredentialResolver
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader

from shoal.storage.dialling import Dial, begin_dial
from shoal.storage.header_values import number_in
from shoal.storage.resolving import GetAddrInfo
from shoal.storage.s3_answers import AttemptError, Refusal, RefusalError, refusal_of
from shoal.storage.s3_bucket import BucketStore
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_config import S3Config, S3Credentials, S3Limits
from shoal.storage.s3_link import Link, Reply
from shoal.storage.s3_parts import BodyReader
from shoal.storage.s3_transport import Answer, Request, Transport

__all__ = ["S3Config", "S3Credentials", "S3Limits", "S3Store"]

# A page of a listing has 1000 keys of at most 1 KiB, and reading XML holds up all of this process.
_MAX_REPLY_BYTES: Final = 2 << 20
# Not XML; or a number, a date or a structure that is none: botocore stumbles in many ways.
_UNREADABLE: Final = (
    BotoCoreError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError,
    RuntimeError,
)  # fmt: skip
# botocore asks servers for their leave before it sends a body; we send at once.
_DROPPED: Final = frozenset({"expect", "user-agent"})
_IDENTIFYING: Final = frozenset({"authorization", "x-amz-security-token", "cookie"})


class S3Store(BucketStore):
    """Objects in a bucket; close it when it is no longer used.

    Args:
        config: Which bucket.
        credentials: Who asks; None: anybody, nothing is signed.
        limits: Time limits and sizes.
        tls: How TLS verifies; None: by the system's certificates.
        getaddrinfo: The system's resolver.
        dial: Begins to connect to an address.
    """

    def __init__(
        self,
        config: S3Config,
        credentials: S3Credentials | None,
        *,
        limits: S3Limits = S3Limits(),  # noqa: B008 - frozen
        tls: ssl.SSLContext | None = None,
        getaddrinfo: GetAddrInfo = socket.getaddrinfo,
        dial: Dial = begin_dial,
    ) -> None:
        self._transport = Transport(config, limits, tls=tls, getaddrinfo=getaddrinfo, dial=dial)
        caller = _Boto(config, credentials, self._transport)
        super().__init__(config, Link(caller, config.where, limits, now_s=time.monotonic))

    def close(self) -> None:
        """Stop what is under way, at its next block, and close all connections."""
        self._link.close()
        self._transport.close()


class _Boto:
    """Makes single requests with boto3's client, over our own transport.

    botocore's answer to a request that is about to be sent may come from a handler; ours sends it
    by the transport, and keeps redirects, refusals and bodies away from botocore.
    """

    def __init__(
        self, config: S3Config, credentials: S3Credentials | None, transport: Transport
    ) -> None:
        self._bucket = config.bucket
        self._transport = transport
        self._is_anonymous = credentials is None
        self._client: Any = _client(config, credentials)
        self._client.meta.events.register("before-send.s3", self._send)

    def call(self, clock: CallClock, operation: str, parameters: Mapping[str, Any]) -> Reply:
        exchange = _Exchange(clock)
        token = _under_way.set(exchange)
        try:
            values = getattr(self._client, operation)(Bucket=self._bucket, **parameters)
        except ClientError as error:
            # An operation that answered 200 and then failed.
            raise RefusalError(_late_refusal(error)) from error
        except _UNREADABLE as error:
            raise AttemptError(f"the answer cannot be read ({type(error).__name__})") from error
        finally:
            _under_way.reset(token)
        return Reply(values=values, answer=exchange.answered())

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        exchange = _under_way.get()
        if isinstance(request.body, BodyReader):
            # Signing and an earlier attempt have read it.
            request.body.seek(0)
        answer = self._transport.send(
            Request(
                method=request.method,
                url=request.url,
                headers=self._headers(request),
                body=request.body,
            ),
            exchange.clock,
        )
        exchange.answer = answer
        is_stream = request.stream_output and answer.status < 300
        body = b"" if is_stream else _whole_body(answer, request.method)
        if answer.status >= 300:
            raise RefusalError(
                refusal_of(_status(answer, request), answer.headers, body, time.time())
            )
        return AWSResponse(request.url, answer.status, dict(answer.headers), _Raw(body))

    def _headers(self, request: AWSPreparedRequest) -> dict[str, str]:
        dropped = _DROPPED | _IDENTIFYING if self._is_anonymous else _DROPPED
        kept = {
            name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
            if name.lower() not in dropped
        }
        return {**kept, "User-Agent": "shoal"}


class _Exchange:
    """What the handler of the request that is under way must know, and what it leaves."""

    def __init__(self, clock: CallClock) -> None:
        self.clock = clock
        self.answer: Answer | None = None

    def answered(self) -> Answer:
        if self.answer is None:
            raise AttemptError("the request was not sent")
        return self.answer


_making_client = threading.Lock()
_under_way: ContextVar[_Exchange] = ContextVar("shoal_storage_s3_exchange")


class _Raw:
    """A body that is in memory, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def _status(answer: Answer, request: AWSPreparedRequest) -> int:
    # An answer about a condition or a range that nobody has set is a bad answer.
    is_asked = any(name.lower().startswith(("if-", "range")) for name in request.headers)
    return 400 if answer.status in {304, 412, 416} and not is_asked else answer.status


def _whole_body(answer: Answer, method: str) -> bytes:
    body = bytearray()
    try:
        if method != "HEAD":
            for block in answer.blocks(_MAX_REPLY_BYTES + 1):
                body += block
        if len(body) > _MAX_REPLY_BYTES:
            raise AttemptError(f"a reply of at most {_MAX_REPLY_BYTES} bytes expected, found more")
        expected = number_in(answer.headers.get("Content-Length"))
        if method != "HEAD" and expected is not None and len(body) != expected:
            raise AttemptError("the connection ended early")
        answer.finish()
    finally:
        answer.close()
    return bytes(body)


def _late_refusal(error: ClientError) -> Refusal:
    details = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return refusal_of(int(status), {}, f"<Code>{details.get('Code', '')}</Code>".encode(), 0.0)


@functools.cache
def _session() -> boto3.session.Session:
    # Every variable of botocore without the name that it has in the environment or in a profile.
    variables = {
        name: (None, None, default, conversion)
        for name, (_, _, default, conversion) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    }
    for name in ("config_file", "credentials_file"):
        variables[name] = (None, None, os.devnull, None)
    core = botocore.session.Session(session_vars=variables)
    # Only the descriptions of services that botocore itself has brought.
    loader = Loader([Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    core.register_component("data_loader", loader)
    core.register_component("credential_provider", CredentialResolver([]))
    # What it tells somebody who debugs includes the tokens of temporary keys.
    logging.getLogger("botocore").setLevel(logging.INFO)
    return boto3.session.Session(botocore_session=core)


def _client(config: S3Config, credentials: S3Credentials | None) -> Any:  # noqa: ANN401 - made at run time, no types
    options = Config(
        signature_version="s3v4" if credentials else UNSIGNED,
        s3={"addressing_style": "path" if config.path_style else "virtual"},
        # Retries are ours; checksums too (MD5, which every provider knows).
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        ignore_configured_endpoint_urls=True,
        proxies={},
    )
    keys = {}
    if credentials:
        keys = {
            "aws_access_key_id": credentials.access_key,
            "aws_secret_access_key": credentials.secret_key,
            "aws_session_token": credentials.session_token or None,
        }
    # A session makes one client at a time; descriptions that it has read stay in memory.
    with _making_client:
        return _session().client(
            "s3",
            region_name=config.region,
            endpoint_url=config.endpoint_url,
            config=options,
            **keys,
        )
