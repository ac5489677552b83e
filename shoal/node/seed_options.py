"""`--seed` of the command line, added to a configuration.

Guarantees: what is no seed is one clear error. Does not do: look a seed up or dial it.
"""

from dataclasses import replace

from shoal.node.config import NodeConfig
from shoal.node.errors import ConfigError
from shoal.node.network.addresses import parse_seed
from shoal.protocol.seed_addresses import is_seed


def with_seeds(config: NodeConfig, seeds: tuple[str, ...]) -> NodeConfig:
    """The configuration with further seeds, the network on where there are any.

    Args:
        config: of a node.
        seeds: multiaddrs with ids, or /dnsaddr/NAME.

    Raises:
        ConfigError: one is no seed.
    """
    if not seeds:
        return config
    for text in seeds:
        try:
            _ = is_seed(text) or parse_seed(text)
        except ValueError as error:
            expected = "/ip4/ADDRESS/tcp/PORT/p2p/ID (or ip6, dns4, dns6) or /dnsaddr/NAME"
            raise ConfigError("command line", "--seed", expected, f"{text} ({error})") from error
    every = tuple(dict.fromkeys((*seeds, *config.network.seeds)))
    return replace(config, network=replace(config.network, enabled=True, seeds=every))
