"""Base parameters as flat fp32 arrays, their root hash, and their safetensors file.

Guarantees: the root covers names, order, shapes and every byte of the values (little-endian fp32),
tensor by tensor, so it can be computed and checked without holding two models; two nodes with equal
roots have equal parameters. A file is read only if names, shapes and dtypes are exactly the
manifest's.

Does not do: know about rounds. safetensors enters here and in `checkpoint`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from shoal.node.errors import CheckpointError
from shoal.protocol.manifest import TensorSection
from shoal.protocol.signing import Domain, digest

Flat = npt.NDArray[np.float32]


def parameters_root(tensors: Sequence[TensorSection], values: Sequence[Flat]) -> bytes:
    """A 32-byte root over all parameters.

    Args:
        tensors: names and shapes, payload order.
        values: flat float32 array of every tensor.
    """
    leaves = [
        digest(
            Domain.CHECKPOINT,
            tensor.name.encode(),
            b"".join(d.to_bytes(8, "little") for d in tensor.shape),
            np.ascontiguousarray(value, dtype="<f4").tobytes(),
        )
        for tensor, value in zip(tensors, values, strict=True)
    ]
    return digest(Domain.CHECKPOINT, *leaves)


def to_file(tensors: Sequence[TensorSection], values: Sequence[Flat]) -> bytes:
    """The parameters as one safetensors file."""
    named = {
        tensor.name: value.reshape(tensor.shape)
        for tensor, value in zip(tensors, values, strict=True)
    }
    raw: bytes = safetensors.numpy.save(named)
    return raw


def from_file(raw: bytes, tensors: Sequence[TensorSection]) -> list[Flat]:
    """The parameters of a safetensors file, flat, in payload order; writable copies.

    Raises:
        CheckpointError: not a safetensors file, or other tensors than the manifest's.
    """
    try:
        named = safetensors.numpy.load(raw)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"not a safetensors file: {error}") from error
    expected = {tensor.name: tensor.shape for tensor in tensors}
    if set(named) != set(expected):
        strange = sorted(set(named) ^ set(expected))[:3]
        raise CheckpointError(f"other tensors than the manifest's, for example {strange}")
    for name, shape in expected.items():
        if named[name].shape != shape or named[name].dtype != np.float32:
            raise CheckpointError(
                f"{name}: expected float32 {shape}, found {named[name].dtype} {named[name].shape}"
            )
    return [named[tensor.name].reshape(-1).copy() for tensor in tensors]
