"""Endpoints from a URL in Prometheus' http_sd format."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Iterator
from typing import ClassVar

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError

from trimtab.policy.discovery import HttpSource
from trimtab.policy.model import no_endpoint, split_host_port
from trimtab.policy.words import quoted
from xds_server.access import why_failed
from xds_server.discovery.source import Answer, Listed, SourceError, capacity, one_line
from xds_server.discovery.web import Web, read_body

logger = logging.getLogger(__name__)

_MAX_BYTES = 8 * 2**20
_MOST_TOLD = 20


class _Group(BaseModel):
    """Targets with what they have in common."""

    targets: list[str] | None  # Go writes an empty list as null
    labels: dict[str, str] | None = None


_GROUPS = TypeAdapter(list[_Group])


class FromHttp:
    """Asks a URL at a steady pace."""

    longest_retry_s: ClassVar[float] = 30.0

    def __init__(self, policy: HttpSource, capacity_label: str, rng: random.Random) -> None:
        self._policy = policy
        self._capacity_label = capacity_label
        self._rng = rng
        self._no_capacities: set[str] = set()  # that were told
        self._twice: set[str] = set()  # targets that were told

    async def answers(self) -> AsyncGenerator[Answer]:
        policy = self._policy
        async with Web(token_file=policy.token_file, ca_file=policy.ca_file, skip_verify=policy.skip_verify) as web:
            while True:
                try:
                    async with asyncio.timeout(policy.timeout_s):
                        body = await self._ask(web)
                except TimeoutError:
                    raise SourceError(f"no whole answer within {policy.timeout_s:g} s") from None
                except aiohttp.ClientError as error:
                    raise SourceError(f"{policy.url}: {why_failed(error)}") from None
                yield await asyncio.to_thread(self._read, body)
                await asyncio.sleep(policy.refresh_s * self._rng.uniform(0.9, 1.0))

    async def _ask(self, web: Web) -> bytes:
        policy = self._policy
        headers = {"X-Prometheus-Refresh-Interval-Seconds": f"{policy.refresh_s:g}"}
        async with web.get(policy.url, headers=headers) as response:
            if response.status == 401:
                fix = f"is the token in {policy.token_file} the right one?" if policy.token_file else "give token_file"
                raise SourceError(f"HTTP 401 from {policy.url}: {fix}")
            if 300 <= response.status < 400:
                place = response.headers.get("Location", "nowhere")
                fix = f"it leads to {place}, and redirects are not followed: fix url"
                raise SourceError(f"HTTP {response.status} from {policy.url}: {fix}")
            if response.status != 200:
                raise SourceError(f"HTTP {response.status} from {policy.url}")
            return await read_body(response, _MAX_BYTES)

    def _read(self, body: bytes) -> Answer:
        try:
            groups = _GROUPS.validate_json(body)
            return self._each_once(self._listed(groups))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
            raise SourceError(f"not in the http_sd format: {where} {first['msg']}".replace(":  ", ": ")) from None
        except ValueError as error:
            raise SourceError(f"not in the http_sd format: {one_line(error)}") from None

    def _each_once(self, listed: Iterator[Listed]) -> Answer:
        """The first of each target, as of two names with one address."""
        once: dict[str, Listed] = {}
        for target in listed:
            first = once.setdefault(target.name, target)
            if first != target and target.name not in self._twice and len(self._twice) < _MOST_TOLD:
                self._twice.add(target.name)
                logger.warning(
                    "%s: %s is there twice, with different labels: the first is used", self._policy.url, target.name
                )
        return tuple(once.values())

    def _listed(self, groups: list[_Group]) -> Iterator[Listed]:
        for group in groups:
            labels = group.labels or {}
            known = capacity(labels, self._capacity_label)
            if known is None and (text := labels.get(self._capacity_label)) is not None:
                self._warn_of_capacity(text)
            for target in group.targets or ():
                host, port = split_host_port(target)
                if why := no_endpoint(host):
                    raise ValueError(f"{target} {why}: name the engine's own address")
                yield Listed(host, port, target, known, labels)

    def _warn_of_capacity(self, text: str) -> None:
        if text not in self._no_capacities and len(self._no_capacities) < _MOST_TOLD:
            self._no_capacities.add(text)
            logger.warning(
                "%s: the label %s is %s, which is no number above 0: no capacity is taken from it",
                self._policy.url,
                self._capacity_label,
                quoted(text),
            )
