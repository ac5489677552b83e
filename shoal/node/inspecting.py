"""`shoal inspect`: what a file claims to be, and what is wrong with it, for people.

Guarantees: no more is read than the largest object of its kind may have, nothing in the file is
trusted, and a bad one is named by the code that a node would give. With the run's manifest every
rule is checked that does not depend on where the node stands (round and base state are taken from
the file itself); without it the file's own consistency is.

Does not do: fetch anything.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from shoal.compression import BodyLayout
from shoal.node.errors import ConfigError
from shoal.node.run_context import BodyChecker, make_spec
from shoal.protocol.announcement import MAX_ANNOUNCEMENT_BYTES, read_announcement
from shoal.protocol.chain import ChainHead
from shoal.protocol.envelope import MAGIC as ENVELOPE_MAGIC
from shoal.protocol.envelope import MessageKind, open_envelope, verify_signatures
from shoal.protocol.errors import MEANINGS, ErrorCode, InvalidManifestError, RemoteProtocolError
from shoal.protocol.identity import parse_peer_key
from shoal.protocol.manifest import MAX_MANIFEST_BYTES, RunManifest, read_manifest
from shoal.protocol.payload import PayloadContext, validate
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    PAYLOAD_PREFIX_BYTES,
    PayloadHeader,
    check_signature,
    payload_id,
)
from shoal.protocol.payload_header import MAGIC as PAYLOAD_MAGIC
from shoal.protocol.record import read_record
from shoal.protocol.record_body import unpack_body
from shoal.protocol.schema import Notation, to_plain
from shoal.protocol.strict_json import load

_MAX_MESSAGE_BYTES = 1 << 24
_PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What to show."""

    kind: str
    facts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    """Empty: nothing wrong was found."""
    checked: str = ""
    """How far the checks went."""

    def __post_init__(self) -> None:
        # Control codes in a stranger's text would be obeyed by the terminal.
        facts = {_printable(name): _printable(value) for name, value in self.facts.items()}
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "problem", _printable(self.problem))


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def inspect_file(path: Path, manifest: RunManifest | None) -> Inspection:
    """Looks at a payload, a record, an announcement or a manifest.

    Args:
        path: the file.
        manifest: of the run that it should belong to, if known.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(PAYLOAD_PREFIX_BYTES)
            num_bytes = os.fstat(file.fileno()).st_size
            is_payload = start[:8] == PAYLOAD_MAGIC
            if is_payload and manifest is None:
                return _inspect_payload(start, num_bytes, file)
            is_payload |= manifest is not None and num_bytes == manifest.payload_bytes
            # One more than the largest, so that a longer one is noticed without being read.
            limit = manifest.payload_bytes if is_payload and manifest else _MAX_MESSAGE_BYTES
            raw = start + file.read(max(limit + 1 - len(start), 0))
    except OSError as error:
        raise ConfigError(path, "the file", "a readable file", error.strerror or "") from error
    if is_payload and manifest is not None:
        return _inspect_payload_of(raw, num_bytes, manifest)
    if start[:8] == ENVELOPE_MAGIC:
        return _inspect_message(raw, manifest)
    if start[:1] == b"{":
        return _inspect_manifest(raw, manifest)
    wanted = "SHOALPAY, SHOALMSG or {"
    return Inspection(
        kind="unknown",
        problem=_explain(ErrorCode.E_MAGIC, f"begins with {start[:8]!r}, not {wanted}"),
    )


def _explain(code: ErrorCode, detail: str) -> str:
    return f"{code}: {detail}. {MEANINGS[code]}"


def _inspect_payload(start: bytes, num_bytes: int, body: IO[bytes]) -> Inspection:
    """A payload without its manifest; the body is hashed as a stream, whatever its length."""
    if len(start) < PAYLOAD_PREFIX_BYTES:
        return _too_short(start)
    header = PayloadHeader.unpack(start[:HEADER_BYTES])
    facts = _payload_facts(start, num_bytes, header)
    checked = "signature and body hash; name the run's --manifest to check the content"
    try:
        _check_alone(start, num_bytes, header, body)
    except RemoteProtocolError as error:
        return Inspection(kind="payload", facts=facts, problem=_explain(error.code, error.detail))
    return Inspection(kind="payload", facts=facts, checked=checked)


def _inspect_payload_of(raw: bytes, num_bytes: int, manifest: RunManifest) -> Inspection:
    if len(raw) < PAYLOAD_PREFIX_BYTES:
        return _too_short(raw)
    header = PayloadHeader.unpack(raw[:HEADER_BYTES])
    facts = _payload_facts(raw, num_bytes, header)
    checked = "every rule of the manifest, for the round and base state in the header"
    try:
        _check_payload(raw, header, manifest)
    except RemoteProtocolError as error:
        return Inspection(kind="payload", facts=facts, problem=_explain(error.code, error.detail))
    return Inspection(kind="payload", facts=facts, checked=checked)


def _too_short(raw: bytes) -> Inspection:
    detail = f"{len(raw)} bytes, a payload's header and signature have {PAYLOAD_PREFIX_BYTES}"
    return Inspection(kind="payload", problem=_explain(ErrorCode.E_LEN, detail))


def _payload_facts(raw: bytes, num_bytes: int, header: PayloadHeader) -> Mapping[str, str]:
    return {
        "bytes": str(num_bytes),
        "id": payload_id(raw[:HEADER_BYTES]).hex(),
        "version": str(header.version),
        "value bits": str(header.codec),
        "run": header.run_id.hex(),
        "manifest": header.manifest_hash.hex(),
        "round": str(header.round_id),
        "peer": _peer_text(header.peer_key),
        "base state": header.base_state.hex(),
        "inner steps": str(header.inner_steps),
        "tokens": str(header.tokens),
        "body bytes": str(header.body_len),
    }


def _check_alone(start: bytes, num_bytes: int, header: PayloadHeader, body: IO[bytes]) -> None:
    if header.body_len != num_bytes - PAYLOAD_PREFIX_BYTES:
        found = num_bytes - PAYLOAD_PREFIX_BYTES
        raise RemoteProtocolError(
            ErrorCode.E_BODY_LEN, f"header says {header.body_len} bytes, the file has {found}"
        )
    check_signature(parse_peer_key(header.peer_key), start)
    hasher = hashlib.sha256()
    while part := body.read(_PART_BYTES):
        hasher.update(part)
    if hasher.digest() != header.body_sha256:
        raise RemoteProtocolError(ErrorCode.E_BODY_HASH, "the body's SHA-256 is not the header's")


def _check_payload(raw: bytes, header: PayloadHeader, manifest: RunManifest) -> None:
    layout = BodyLayout(make_spec(manifest.codec), manifest.sizes)
    context = PayloadContext(
        round_id=header.round_id,
        base_state=header.base_state,
        seen={},
        check_body=BodyChecker(layout),
    )
    validate(raw, manifest.payload_rules(), context)


def _inspect_message(raw: bytes, manifest: RunManifest | None) -> Inspection:
    number = int.from_bytes(raw[10:12], "little")
    try:
        if number == MessageKind.RECORD.value:
            return _inspect_record(raw, manifest)
        return _inspect_announcement(raw, manifest)
    except RemoteProtocolError as error:
        kind = "record" if number == MessageKind.RECORD.value else "announcement"
        return Inspection(kind=kind, problem=_explain(error.code, error.detail))


def _inspect_record(raw: bytes, manifest: RunManifest | None) -> Inspection:
    envelope = open_envelope(
        raw, MessageKind.RECORD, max_bytes=_MAX_MESSAGE_BYTES, max_signatures=1000
    )
    entries, record = unpack_body(envelope.body, _MAX_MESSAGE_BYTES)
    facts = {
        "run": record.run_id.hex(),
        "round": str(record.round_id),
        "closed": f"{record.close_reason} at {record.closed_at_ms} ms",
        "previous record": record.previous.hex(),
        "base state": record.base_state.hex(),
        "state": record.state.hex(),
        "void": "yes" if record.void else "no",
        "parameters root": record.params_root.hex() or "none in this round",
        "signed by": ", ".join(_peer_text(one.key) for one in envelope.signatures),
    }
    for i, entry in enumerate(entries, start=1):
        weight = f"weight {entry.weight / 32768:.3f}"
        facts[f"counted {i}"] = f"{_peer_text(entry.peer_key)} {entry.payload_id.hex()} {weight}"
    problem, checked = "", "signatures; name the run's --manifest to check the rest"
    try:
        if manifest is None:
            verify_signatures(envelope)
        else:
            checked = "every rule of the manifest, as the record after its own predecessor"
            head = ChainHead(
                round_id=record.round_id - 1, record_id=record.previous, state=record.base_state
            )
            read_record(raw, manifest.record_rules(), head)
    except RemoteProtocolError as error:
        problem = _explain(error.code, error.detail)
    return Inspection(kind="record", facts=facts, problem=problem, checked=checked)


def _inspect_announcement(raw: bytes, manifest: RunManifest | None) -> Inspection:
    envelope = open_envelope(
        raw, MessageKind.ANNOUNCEMENT, max_bytes=MAX_ANNOUNCEMENT_BYTES, max_signatures=1
    )
    fields = load(envelope.body, MAX_ANNOUNCEMENT_BYTES)
    facts = {name: str(value) for name, value in fields.items()}
    problem, checked = "", "signature; name the run's --manifest to check the rest"
    try:
        if manifest is None:
            verify_signatures(envelope)
        else:
            checked = "every rule of the manifest, for its own round"
            round_id = fields.get("round")
            number = round_id if isinstance(round_id, int) else 0
            read_announcement(raw, manifest.payload_rules(), number)
    except RemoteProtocolError as error:
        problem = _explain(error.code, error.detail)
    return Inspection(kind="announcement", facts=facts, problem=problem, checked=checked)


def _inspect_manifest(raw: bytes, known: RunManifest | None) -> Inspection:
    try:
        manifest = read_manifest(raw[: MAX_MANIFEST_BYTES + 1])
    except RemoteProtocolError as error:
        return Inspection(kind="manifest", problem=_explain(error.code, error.detail))
    except InvalidManifestError as error:
        return Inspection(kind="manifest", problem=_explain(ErrorCode.E_CONFIG, str(error)))
    facts = {"run": manifest.run_id.hex(), "manifest": manifest.manifest_hash.hex()}
    plain = to_plain(manifest, Notation.NATIVE)
    tensors = plain.pop("tensors")
    facts |= dict(_flatten("", plain))
    for i, tensor in enumerate(tensors):
        facts[f"tensors[{i}]"] = f"{tensor['name']} {tensor['shape']}"
    facts["tensors"] = f"{len(manifest.tensors)} with {sum(manifest.sizes):,} parameters"
    facts["payload bytes"] = str(manifest.payload_bytes)
    problem = ""
    if known is not None and known.manifest_hash != manifest.manifest_hash:
        code = ErrorCode.E_MANIFEST if known.run_id == manifest.run_id else ErrorCode.E_RUN
        problem = _explain(code, f"--manifest is of run {known.run_id.hex()}")
    return Inspection(kind="manifest", facts=facts, problem=problem, checked="every rule")


def _flatten(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Every scalar of nested tables and lists with its dotted path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _flatten(f"{path}[{i}]", item)
    else:
        yield path, str(value)


def _peer_text(key: bytes) -> str:
    try:
        return parse_peer_key(key).text
    except RemoteProtocolError as error:
        return f"{key.hex()} ({error.code})"
