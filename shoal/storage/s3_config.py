"""What a store in a bucket needs to know: where it is, who asks, and how long it may take.

Guarantees: a secret never shows in a `repr` or `str`; a configuration that cannot work is refused
when it is made. No I/O.
"""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from shoal.storage.endpoints import check_bucket_name, check_hostname, check_url
from shoal.storage.keys import check_key
from shoal.storage.proxy import proxy_address

MIN_PART_BYTES = 5 << 20
MAX_NUM_PARTS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Config:
    """Where a bucket is.

    Attributes:
        endpoint_url: Scheme, host and perhaps port of the S3 server; https unless on this machine.
        bucket: The bucket's name.
        prefix: Keys live below this folder of the bucket; empty: at its top.
        region: The region that requests are signed for.
        path_style: Bucket in the path, not in the host name.
        lists_in_order: The server lists keys in the order of their bytes, as S3 promises; if it
            does not, every page costs a listing of all keys with its prefix.
        joins_once: The server keeps create-once also when several writers join parts at the same
            moment; if it does not, objects that are created travel whole, whatever their size.
        allow_loopback: This machine's own addresses and http are allowed: a local run.
        allow_private: Any address and http are allowed: only for one's own server, never for an
            address that somebody else has named.
        proxy: http://HOST:PORT of a proxy that all connections are tunnelled through; empty: none.
    """

    endpoint_url: str
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    path_style: bool = True
    lists_in_order: bool = True
    joins_once: bool = True
    allow_loopback: bool = False
    allow_private: bool = False
    proxy: str = ""

    def __post_init__(self) -> None:
        check_url(
            self.endpoint_url,
            allow_http=self.allow_loopback or self.allow_private,
            allow_port=True,
        )
        check_hostname(urlsplit(self.endpoint_url).hostname or "", allow_address=self.is_local)
        check_bucket_name(self.bucket)
        if self.prefix:
            check_key(self.prefix)
        if self.proxy:
            proxy_address(self.proxy)

    @property
    def is_local(self) -> bool:
        """Whether addresses that are not public may be connected to."""
        return self.allow_loopback or self.allow_private

    @property
    def where(self) -> str:
        """The bucket in words, for messages."""
        return f"bucket {self.bucket!r} at {self.endpoint_url}"


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Credentials:
    """A key pair; neither its secret nor its token is ever printed.

    Attributes:
        access_key: Names the key.
        secret_key: Signs requests.
        session_token: Comes with a temporary key; empty otherwise.
    """

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            text = getattr(self, name)
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError(f"{name}: printable ASCII without spaces expected")


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Limits:
    """How long a call may take, and how it is cut into pieces.

    Attributes:
        deadline_s: The most that one call takes, all its attempts and waits together.
        connect_timeout_s: The most that opening a connection takes.
        read_timeout_s: A connection that moves nothing for so long is given up and opened anew.
        min_bytes_per_s: A call whose transfers are slower than this together is given up.
        min_rate_window_s: Over how long the rate is measured.
        num_attempts: Attempts in a row that brought nothing before a call gives up; those that the
            server asked to wait for do not count, the deadline bounds them.
        first_wait_s: The first wait between attempts; each one doubles it.
        max_wait_s: The longest wait that we choose; a server may ask for more.
        part_bytes: Larger objects travel in parts of this size, several at a time.
        num_parallel: Parts of one call that travel at the same time.
        num_threads: Requests of one store that are under way at the same time.
        num_control_threads: As many more for the control plane, which bulk never holds.
    """

    deadline_s: float = 600.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 15.0
    min_bytes_per_s: float = 64 * 1024
    min_rate_window_s: float = 10.0
    num_attempts: int = 5
    first_wait_s: float = 0.2
    max_wait_s: float = 5.0
    part_bytes: int = 16 << 20
    num_parallel: int = 4
    num_threads: int = 16
    num_control_threads: int = 4

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: 0 or more expected, found {getattr(self, name)}")
        if self.part_bytes < MIN_PART_BYTES:
            raise ValueError(f"part_bytes: {MIN_PART_BYTES} or more, found {self.part_bytes}")
        counts = (self.num_attempts, self.num_parallel, self.num_threads, self.num_control_threads)
        if min(counts) < 1:
            raise ValueError("num_attempts, num_parallel and both numbers of threads: at least 1")
