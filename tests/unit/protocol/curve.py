"""Edwards25519 in affine coordinates: slow, short, and independent of any library."""

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, -1, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P)
    return x % P, y % P


def multiply(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    for bit in f"{scalar:b}":
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def lift(y: int) -> Point:
    """A point with this y; raises ValueError where there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    if root * root % P != square:
        root = root * pow(2, (P - 1) // 4, P) % P
    if root * root % P != square:
        raise ValueError(y)
    return root, y


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def base() -> Point:
    x, y = lift(4 * pow(5, -1, P) % P)
    return (x if x % 2 == 0 else P - x), y


def torsion() -> set[Point]:
    """The eight points whose order divides 8."""
    for y in range(2, 200):
        try:
            point = multiply(L, lift(y))
        except ValueError:
            continue
        multiples = {multiply(n, point) for n in range(1, 9)}
        if len(multiples) == 8:
            return multiples
    raise AssertionError("no point of order 8 found")


def sign_with_nonce(seed: bytes, message: bytes, nonce: int) -> bytes:
    """A valid signature that a signer can make with a nonce of its own choice."""
    hashed = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(hashed[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    key, commitment = encode(multiply(scalar, base())), encode(multiply(nonce, base()))
    challenge = hashlib.sha512(commitment + key + message).digest()
    response = (nonce + int.from_bytes(challenge, "little") * scalar) % L
    return commitment + response.to_bytes(32, "little")
