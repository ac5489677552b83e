"""Finds out what a bucket can do: what `shoal doctor` runs against it.

Every check does the thing itself, in a folder with a random name below the one where objects of
this purpose really go, and says what follows where it is missing; what only a run's bucket needs is
not asked of one that holds payloads. Guarantees: touches no other key, removes what it has written
(as far as the bucket lets it), raises nothing that a bucket can cause, moves a few kilobytes.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from shoal.storage.bucket_probes import Finding, Level, Probes, Purpose
from shoal.storage.errors import StorageError
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store

OpenStore = Callable[[S3Config, S3Credentials | None], S3Store]
Check = tuple[str, str, Callable[[], Awaitable[Finding]]]

_LIMITS: Final = S3Limits(deadline_s=30.0, num_attempts=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckLine:
    """One finding.

    Attributes:
        code: Which check, by a name that stays.
        level: "ok", "warning" if a run works all the same, "failure" if it does not.
        what: What was looked at.
        cause: What was found instead; empty if all is well.
        fix: What to do about it; empty if nothing.
    """

    code: str
    level: Level
    what: str
    cause: str = ""
    fix: str = ""


async def check_bucket(
    config: S3Config,
    writer: S3Credentials,
    *,
    purpose: Purpose = "run",
    folder: str = "",
    reader: S3Credentials | None = None,
    opened_by: OpenStore = partial(S3Store, limits=_LIMITS),  # noqa: B008 - immutable
) -> list[CheckLine]:
    """Look at everything that a run needs of a bucket.

    Args:
        config: Which bucket.
        writer: The key that may write.
        purpose: Whether it holds the run's objects, or the payloads of one peer and nothing else.
        folder: Where such objects go, without a slash at its end; empty: the top.
        reader: The key that is given to others; None if the bucket is public.
        opened_by: Makes the stores.

    Returns:
        One line per check; only the first if nothing can be written.
    """
    parts = (config.prefix, folder, f"shoal-check-{secrets.token_hex(8)}")
    inside = replace(config, prefix="/".join(part for part in parts if part))
    stores = [opened_by(inside, key) for key in (writer, reader, None)]
    probes = Probes(
        config, purpose, store=stores[0], reader=stores[1] if reader else None, anybody=stores[2]
    )
    try:
        first = await _guarded("BUCKET_WRITE", "write an object", probes.write)
        if first.level == "failure":
            return [first]
        # One after the other: a slow line is not to be mistaken for a missing feature.
        return [first, *[await _guarded(*check) for check in _checks(probes, purpose)]]
    finally:
        await probes.clean_up()
        for store in stores:
            store.close()


def _checks(probes: Probes, purpose: Purpose) -> list[Check]:
    """What is looked at after the first write; the deletion takes the object of the others."""
    of_all: list[Check] = [
        ("BUCKET_READ_AFTER_WRITE", "read what was just written", probes.read_after_write),
        ("BUCKET_RANGE", "read ranges exactly", probes.range),
        ("BUCKET_MULTIPART", "write in parts, and give parts up", probes.multipart),
        ("BUCKET_CHECKSUM", "refuse damaged bytes", probes.checksum),
        ("BUCKET_PUBLIC_READ", "others can read", probes.others_read),
        ("BUCKET_PUBLIC_WRITE", "others cannot write", probes.others_write),
    ]
    of_run: list[Check] = [
        ("BUCKET_CREATE_ONCE", "refuse a second write of a key", probes.create_once),
        ("BUCKET_IF_MATCH", "overwrite only a known version", probes.if_match),
        ("BUCKET_LIST", "list keys by pages, in order", probes.list),
        ("BUCKET_PUBLIC_LIST", "others can list", probes.others_list),
    ]
    last: Check = ("BUCKET_DELETE", "delete an object", probes.delete)
    return [*of_all, *(of_run if purpose == "run" else ()), last]


async def _guarded(code: str, what: str, check: Callable[[], Awaitable[Finding]]) -> CheckLine:
    try:
        found = await check()
    except StorageError as error:
        fix = "look at the address, the bucket's name, the region and the key's permissions"
        found = ("failure", error.message, fix)
    level, cause, fix = found or ("ok", "", "")
    return CheckLine(code=code, level=level, what=what, cause=cause, fix=fix)
