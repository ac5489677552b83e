"""The network as the node sees it.

    async with NetworkClient(settings, identity) as network:
        await network.announce(record)          # a signed record under its own key
        value = await network.look_up(peer, kind)
        await network.serve(object_id, data)
        data = await network.fetch(object_id, sources, num_bytes=..., timeout_s=...)

Guarantees: every call has a time limit; the process behind it may end at any moment, is started
again, and is told again what to serve and to publish. `fetch` goes on at the byte where the last
source stopped, and returns bytes only if they have the hash they were asked for by (unless told
that the id is no hash). Objects are kept as files in the node's folder for as long as they are
served; they are gone after `close`.

Not done here: what the bytes mean; which peers to ask.
"""

import asyncio
import hashlib
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, TypeVar

from shoal.node.network import messages, signed_records
from shoal.node.network.connection import Connection, ConnectionLostError
from shoal.node.network.dht_records import PEER_KIND, RecordRules, location, read_record, record_key
from shoal.node.network.errors import PeerUnavailableError, RecordRefusedError, WrongBytesError
from shoal.node.network.messages import Answer, DhtPut, Request, Start, Status
from shoal.node.network.signed_records import MAX_ADDRESSES, PeerRecord
from shoal.node.network.supervisor import Supervisor
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import Identity, PeerId
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError
from shoal.storage.progress import note_moved, note_retry

DEFAULT_TIMEOUT_S: Final = 60.0
