"""Valid bodies that hold something."""

from itertools import count

from shoal.compression import BodyLayout
from tests.unit.compression.bodies import random_body


def body_like(layout: BodyLayout, seed: int) -> bytes:
    """A valid body of anything but nothing: one that is all empty is drawn again."""
    draws = (random_body(layout, seed + 1_000_003 * attempt) for attempt in count())
    return next(body for body in draws if any(body))
