"""Which buckets a node uses, and with which key.

Guarantees: a bucket that somebody else has announced is made from the manifest's template and keeps
the check of addresses; only this node's own configuration may name a server in a private network.
The key in the environment belongs to the one bucket that this node writes to.

Does not do: open connections.
"""

from dataclasses import replace

from shoal.node.config import NodeConfig, read_s3_secrets
from shoal.node.errors import ConfigError
from shoal.protocol.announcement import Where
from shoal.protocol.manifest import RunManifest
from shoal.storage.endpoints import EndpointTemplate, endpoint_for
from shoal.storage.s3_config import S3Config, S3Credentials


def run_bucket(config: NodeConfig) -> S3Config:
    """The bucket of `[store]`.

    Raises:
        RefusedError: the endpoint or the bucket's name cannot be one; has the code.
    """
    store = config.store
    return S3Config(
        endpoint_url=store.endpoint,
        bucket=store.bucket,
        prefix=store.prefix,
        region=store.region,
        lists_in_order=store.lists_in_order,
        joins_once=store.joins_once,
        # This node's own configuration may name any server, also one in its own network.
        allow_private=True,
        proxy=config.proxy,
    )


def own_bucket(config: NodeConfig) -> Where:
    """How the bucket of `[payloads]` is announced."""
    payloads = config.payloads
    return Where(provider=payloads.provider, account=payloads.account, bucket=payloads.bucket)


def bucket_at(manifest: RunManifest, config: NodeConfig, where: Where) -> S3Config:
    """The bucket that an announcement names, through the manifest's templates.

    Raises:
        RefusedError: the place is not allowed; has the code.
    """
    section, port = manifest.endpoints, config.payloads.local_port
    templates = {
        provider.name: EndpointTemplate(
            url=provider.url,
            port=port if "{port}" in provider.url else None,
            allow_loopback=section.allow_loopback,
        )
        for provider in section.providers
    }
    url = endpoint_for(where.provider, where.account, where.bucket, templates)
    return S3Config(
        endpoint_url=url,
        bucket=where.bucket,
        region=config.payloads.region,
        allow_loopback=section.allow_loopback,
        proxy=config.proxy,
    )


def written_bucket(
    manifest: RunManifest, config: NodeConfig
) -> tuple[S3Config, S3Credentials] | None:
    """The bucket that this node writes to, with its key; None if it writes to none.

    Raises:
        ConfigError: there is one, but no key for it in the environment.
        RefusedError: the manifest does not allow the place; has the code.
    """
    if config.payloads.kind == "s3":
        place = replace(
            bucket_at(manifest, config, own_bucket(config)),
            lists_in_order=config.payloads.lists_in_order,
            joins_once=config.payloads.joins_once,
        )
    elif config.store.kind == "s3" and not config.store.url:
        place = run_bucket(config)
    else:
        return None
    return place, needed_key(place)


def needed_key(place: S3Config) -> S3Credentials:
    """The key in the environment, for a bucket that has to be written to.

    Raises:
        ConfigError: there is none.
    """
    key = key_of_bucket()
    if key is None:
        expected = "SHOAL_S3_ACCESS_KEY_ID and SHOAL_S3_SECRET_ACCESS_KEY in the environment"
        raise ConfigError("node.toml", f"bucket {place.bucket}", expected, "no key")
    return key


def key_of_bucket() -> S3Credentials | None:
    """The key in the environment; None where there is none.

    Raises:
        ConfigError: it has characters that no key has.
    """
    found = read_s3_secrets()
    if found is None:
        return None
    access, secret, token = found
    try:
        return S3Credentials(access_key=access, secret_key=secret, session_token=token)
    except ValueError as error:
        # The message names the half that is wrong, not its text.
        raise ConfigError("environment", "SHOAL_S3_*", "a key's two halves", str(error)) from error
