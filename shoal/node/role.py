"""Whether a node's key and store fit what it wants to be in a run.

Guarantees: what does not fit is one clear error before anything is opened. Does no I/O.
"""

from shoal.node.config import NodeConfig
from shoal.node.errors import ConfigError
from shoal.node.store_keys import P2P
from shoal.protocol.errors import ErrorCode
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import RunManifest


def check_role(
    manifest: RunManifest, config: NodeConfig, identity: Identity, *, validates: bool
) -> None:
    """Lets a node pass that may do what it wants.

    Args:
        manifest: of the run.
        config: of the node.
        identity: the node's.
        validates: whether it closes rounds instead of training.

    Raises:
        ConfigError: its key or its store is not one for that.
    """
    _check_key(manifest, identity, validates=validates)
    _check_store(config, validates=validates)


def _check_key(manifest: RunManifest, identity: Identity, *, validates: bool) -> None:
    roster = manifest.roster
    if validates and identity.peer not in manifest.validator_ids:
        raise ConfigError(
            "the manifest",
            "validators.keys",
            f"this node's key {identity.peer.text} ({identity.peer.key.hex()})",
            f"{len(manifest.validators.keys)} other keys; to train, use shoal join",
        )
    if not validates and roster is not None and identity.peer not in roster:
        raise ConfigError(
            "the manifest",
            "admission.peers",
            f"{ErrorCode.E_PEER_UNKNOWN}: this node's key {identity.peer.text}",
            f"a roster of {len(roster)} other keys; "
            + (
                "it is a validator's key: use shoal validate"
                if identity.peer in manifest.validator_ids
                else "ask whoever runs it to add this one"
            ),
        )


def _check_store(config: NodeConfig, *, validates: bool) -> None:
    if validates and config.store.kind == P2P:
        expected = "directory or s3: a validator keeps the run's records and copies itself"
        raise ConfigError("node.toml", "store.kind", expected, config.store.kind)
