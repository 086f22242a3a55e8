"""Endpoints from the Kubernetes API: the EndpointSlices of a service, or pods by their labels."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import aiohttp
from pydantic import ValidationError

from trimtab.policy.discovery import KubernetesSource
from xds_server.access import why_failed
from xds_server.discovery.kubernetes_objects import Manifest, Pod, Slice, listed_pods, listed_slices
from xds_server.discovery.source import Answer, SourceError, one_line, socket_address
from xds_server.discovery.web import Web, read_body

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_LIST_TIMEOUT_S = 10.0
_LIST_MAX_BYTES = 64 * 2**20
_EVENT_MAX_BYTES = 4 * 2**20
# A watch is opened anew so often: a connection that died without a word is noticed, and a new token used.
_WATCH_S = 60.0
_WATCH_GRACE_S = 5.0
# Watches that end at once, or lists that are outdated at once, must not become a flood.
_PAUSE_S = 0.5
_OUTDATED_MAX = 3


class _Gone(Exception):
    """The version that a watch was to begin at is no longer there: list again."""


class _Place(NamedTuple):
    """What is asked for, and where."""

    api: str  # URL
    namespace: str
    group: str  # "" is the core group
    resource: str
    selector: str
    token_file: str | None

    @property
    def url(self) -> str:
        root = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        return f"{self.api}{root}/namespaces/{self.namespace}/{self.resource}"


class FromKubernetes:
    """Lists what there is, then watches it from there on."""

    longest_retry_s: ClassVar[float] = 30.0

    def __init__(self, policy: KubernetesSource, capacity_label: str) -> None:
        self._policy = policy
        self._capacity_label = capacity_label
        self._kind: type[Slice] | type[Pod] = Slice if policy.service is not None else Pod

    async def answers(self) -> AsyncGenerator[Answer]:
        place = self._place()
        outdated = 0
        async with self._web(place) as web:
            while True:
                try:
                    async with aclosing(self._follow(web, place)) as states:
                        async for objects in states:
                            outdated = 0
                            yield self._listed(objects)
                except _Gone:
                    outdated += 1
                    if outdated > _OUTDATED_MAX:
                        raise SourceError(f"what {place.url} lists is outdated before it can be watched") from None
                    await asyncio.sleep(_PAUSE_S)
                except aiohttp.ClientError as error:
                    raise SourceError(f"{place.api}: {why_failed(error)}") from None
                except ValidationError as error:
                    raise SourceError(f"not what Kubernetes would say: {one_line(error)}") from None

    def _listed(self, objects: Mapping[str, Manifest]) -> Answer:
        port, port_name, label = self._policy.port, self._policy.port_name, self._capacity_label
        if self._kind is Slice:
            return listed_slices([o for o in objects.values() if isinstance(o, Slice)], port, port_name, label)
        return listed_pods([o for o in objects.values() if isinstance(o, Pod)], port, port_name, label)

    async def _follow(self, web: Web, place: _Place) -> AsyncGenerator[Mapping[str, Manifest]]:
        """All objects, again after every change, and whenever a watch was opened. Raises _Gone."""
        objects, version = await self._list(web, place)
        loop = asyncio.get_running_loop()
        while True:
            opened_at = loop.time()
            async with _watch(web, place, version) as response:
                # Not before: one who may list but not watch would never hear of a change.
                yield objects
                async with aclosing(_events(response)) as batches:
                    async for events in batches:
                        for event in events:
                            version = self._apply(objects, event) or version
                        yield objects
            await asyncio.sleep(max(0.0, opened_at + _PAUSE_S - loop.time()))

    async def _list(self, web: Web, place: _Place) -> tuple[dict[str, Manifest], str]:
        try:
            async with (
                asyncio.timeout(_LIST_TIMEOUT_S),
                _get(web, place, "list", {}) as response,
            ):
                body = await read_body(response, _LIST_MAX_BYTES)
        except TimeoutError:
            raise SourceError(f"no whole answer within {_LIST_TIMEOUT_S:g} s from {place.url}") from None
        match await asyncio.to_thread(_parse, body):
            case {"metadata": {"resourceVersion": str() as version}, "items": list() | None as items}:
                found = [self._kind.model_validate(item) for item in items or ()]
                return {one.metadata.key: one for one in found}, version
        raise SourceError(f"{place.url} does not answer with a list, as Kubernetes would")

    def _apply(self, objects: dict[str, Manifest], event: Any) -> str:
        """Take in an event; what it returns is the version to go on from."""
        match event:
            case {"type": "ERROR", "object": {"code": 410}}:
                raise _Gone
            case {"type": "ERROR", "object": {"message": message}}:
                raise SourceError(f"the watch was ended: {message}")
            case {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str() as version}}}:
                return version
            case {"type": "ADDED" | "MODIFIED" | "DELETED" as what, "object": dict() as manifest}:
                one = self._kind.model_validate(manifest)
                if what == "DELETED":
                    objects.pop(one.metadata.key, None)
                else:
                    objects[one.metadata.key] = one
                return one.metadata.resource_version
        raise SourceError("the watch has an event that is none of Kubernetes'")

    def _place(self) -> _Place:
        policy = self._policy
        api = policy.api or _cluster_api()
        namespace = policy.namespace or _own_namespace()
        token_file = policy.token_file or (None if policy.api is not None else str(SERVICE_ACCOUNT / "token"))
        if policy.service is not None:
            selector = f"kubernetes.io/service-name={policy.service}"
            return _Place(api, namespace, "discovery.k8s.io", "endpointslices", selector, token_file)
        return _Place(api, namespace, "", "pods", policy.selector or "", token_file)

    def _web(self, place: _Place) -> Web:
        policy = self._policy
        ca_file = policy.ca_file
        if ca_file is None and policy.api is None and not policy.skip_verify:
            ca_file = str(SERVICE_ACCOUNT / "ca.crt")
        return Web(token_file=place.token_file, ca_file=ca_file, skip_verify=policy.skip_verify)


@asynccontextmanager
async def _get(web: Web, place: _Place, verb: str, more: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
    """An answer that is 200. Raises _Gone, and SourceError for all others."""
    async with web.get(place.url, params={"labelSelector": place.selector, **more}) as response:
        match response.status:
            case 200 if response.content_type == "application/json":
                yield response
            case 200:
                raise SourceError(f"{place.url} does not answer with JSON, as Kubernetes would")
            case 401:
                fix = f"the token in {place.token_file} is not accepted" if place.token_file else "give token_file"
                raise SourceError(f"HTTP 401 from {place.api}: {fix}")
            case 403:
                raise SourceError(
                    f"HTTP 403: we may not {verb} {place.resource} in namespace {place.namespace}: "
                    f"give the service account a Role with verbs [list, watch], resources [{place.resource}], "
                    f'apiGroups ["{place.group}"]'
                )
            case 410:
                raise _Gone
            case status:
                raise SourceError(f"HTTP {status} from {place.url}")


@asynccontextmanager
async def _watch(web: Web, place: _Place, version: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """A watch that has begun."""
    asked = {
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": f"{_WATCH_S:.0f}",
    }
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                response = await stack.enter_async_context(_get(web, place, "watch", asked))
        except TimeoutError:
            raise SourceError(f"no watch began within {_LIST_TIMEOUT_S:g} s at {place.url}") from None
        stack.callback(response.close)
        yield response


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[list[Any]]:
    """The events of a watch as they come, several where they come at once; it ends when and however the watch does."""
    rest = b""
    chunks = response.content.iter_any()
    loop = asyncio.get_running_loop()
    end = loop.time() + _WATCH_S + _WATCH_GRACE_S
    while True:
        try:
            async with asyncio.timeout_at(end):
                chunk = await anext(chunks)
        except (StopAsyncIteration, TimeoutError, aiohttp.ClientError):
            return  # the next watch goes on from here, and shows whether the server is still there
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _EVENT_MAX_BYTES:
            raise SourceError(f"an event of the watch is larger than {_EVENT_MAX_BYTES >> 20} MiB")
        if events := [_parse(line) for line in lines if line.strip()]:
            yield events


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise SourceError("the answer is not JSON") from None


def _cluster_api() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        raise SourceError("this is not inside a Kubernetes cluster: give api, namespace and token_file")
    return f"https://{socket_address(host, int(port))}"


def _own_namespace() -> str:
    path = SERVICE_ACCOUNT / "namespace"
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError):
        raise SourceError(f"{path} cannot be read: give namespace") from None
