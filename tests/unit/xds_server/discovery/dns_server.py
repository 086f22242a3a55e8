"""A DNS server for tests, over UDP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """Answers with `records` of (name, type), such as {("vllm.test.", "A"): ["10.0.0.1"]}."""

    def __init__(self) -> None:
        self.address = ""
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 0
        self.rcode: dns.rcode.Rcode | None = None  # in place of any answer
        self.garbage = False
        self.asked: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, client: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{question.name} {kind}")
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        found = self.records.get((str(question.name), kind))
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif found:
            answer.answer.append(dns.rrset.from_text(question.name, self.ttl_s, "IN", kind, *found))
        elif not any(name == str(question.name) for name, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(b"\0" if self.garbage else answer.to_wire(), client)


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    """One on a free port."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, local_addr=("127.0.0.1", 0))
    host, port = transport.get_extra_info("sockname")
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        transport.close()
