"""A DNS server on loopback that knows some TXT records."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """Answers TXT questions from `records`; `asked` has the names."""

    def __init__(self, records: dict[str, list[str]]) -> None:
        self.records = records
        self.asked: list[str] = []
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: before 3.12 the loop's own transport is none of that class.
        self._transport = cast("asyncio.DatagramTransport", transport)
        host, port, *_ = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        name = question.question[0].name.to_text(omit_final_dot=True)
        self.asked.append(name)
        answer = dns.message.make_response(question)
        if name in self.records:
            texts = [f'"{text}"' for text in self.records[name]]
            asked = question.question[0].name
            answer.answer.append(dns.rrset.from_text(asked, 60, "IN", "TXT", *texts))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def dns_server(records: dict[str, list[str]]) -> AsyncIterator[DnsServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: DnsServer(records), local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        transport.close()
