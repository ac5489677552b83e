"""A clock that stands still until a test moves it."""


class FakeClock:
    def __init__(self, now_s: float = 1000.0) -> None:
        self.time_s = now_s

    def now_s(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds
