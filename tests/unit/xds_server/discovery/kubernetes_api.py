"""A Kubernetes API server for tests: lists and watches of one namespace, after the documentation of the API.

Versions, bookmarks, 410 for what was compacted, 401 and 403 with Status objects. The manifests are written by hand
after the API's reference, with the fields that matter and some that must be ignored: none is captured from a cluster.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Manifest = dict[str, Any]


class KubernetesApi:
    """`pods` and `endpointslices` of the namespace llm."""

    def __init__(self) -> None:
        self.url = ""
        self.token: str | None = None
        self.denied: set[tuple[str, str]] = set()  # verb, resource
        self.version = 1000
        self.requests: list[tuple[str, str, str]] = []  # verb, resource, label selector
        self.down = False
        self.nonsense = False
        self.body: str | None = None  # JSON in place of any list
        self.watch_s = 3600.0  # how long a watch may last, whatever it asked for
        self._objects: dict[tuple[str, str], Manifest] = {}
        self._history: list[tuple[int, str, Manifest]] = []  # version, resource, event
        self._compacted = 0
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[None]] = set()

    @property
    def watches(self) -> int:
        return len(self._watches)

    async def put(self, resource: str, manifest: Manifest) -> None:
        """Add an object, or change the one of this name."""
        key = (resource, manifest["metadata"]["name"])
        await self._record(resource, "MODIFIED" if key in self._objects else "ADDED", manifest)
        self._objects[key] = manifest

    async def delete(self, resource: str, name: str) -> None:
        await self._record(resource, "DELETED", self._objects.pop((resource, name)))

    async def replace(self, resource: str, manifests: list[Manifest]) -> None:
        """Have these objects, and no others."""
        wanted = {manifest["metadata"]["name"] for manifest in manifests}
        for kind, name in list(self._objects):
            if kind == resource and name not in wanted:
                await self.delete(resource, name)
        for manifest in manifests:
            await self.put(resource, manifest)

    async def send(self, event: Manifest) -> None:
        """Say something in all watches that is none of the objects."""
        async with self._changed:
            self._history.append((self.version, "*", event))
            self._changed.notify_all()

    async def bookmark(self) -> None:
        self.version += 100
        for resource in ("pods", "endpointslices"):
            event = {
                "type": "BOOKMARK",
                "object": {"kind": resource, "metadata": {"resourceVersion": str(self.version)}},
            }
            async with self._changed:
                self._history.append((self.version, resource, event))
                self._changed.notify_all()

    def compact(self) -> None:
        """Forget all history: who watches from an earlier version is told that it is gone."""
        self.version += 1
        self._compacted = self.version
        self._history.clear()

    def hang_up(self) -> None:
        """End all watches without a word."""
        for task in self._watches:
            task.cancel()

    async def _record(self, resource: str, what: str, manifest: Manifest) -> None:
        async with self._changed:
            self.version += 1
            manifest["metadata"]["resourceVersion"] = str(self.version)
            self._history.append((self.version, resource, {"type": what, "object": json.loads(json.dumps(manifest))}))
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        resource, watched = request.match_info["resource"], request.query.get("watch") == "true"
        verb = "watch" if watched else "list"
        self.requests.append((verb, resource, request.query["labelSelector"]))
        if self.down:
            return _status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if (verb, resource) in self.denied:
            return _status(403, "Forbidden", f'{resource} is forbidden: User "u" cannot {verb} resource "{resource}"')
        if self.nonsense:
            return web.Response(text="<html>a login page</html>")
        if watched:
            return await self._watch(request, resource)
        if self.body is not None:
            return web.json_response(text=self.body)
        items = [manifest for (kind, _), manifest in self._objects.items() if kind == resource]
        body = {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items or None}
        return web.json_response(body)

    async def _watch(self, request: web.Request, resource: str) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if version < self._compacted:
            await response.write(
                _line({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
            )
            return response
        # What comes from now on is sent, although the task has yet to begin: `watches` counts it already.
        task = asyncio.ensure_future(self._stream(response, resource, version, len(self._history)))
        self._watches.add(task)
        try:
            await asyncio.wait_for(task, min(self.watch_s, float(request.query["timeoutSeconds"])))
        except (TimeoutError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._watches.discard(task)
        if request.transport is not None and task.cancelled():
            request.transport.close()
        return response

    async def _stream(self, response: web.StreamResponse, resource: str, version: int, seen: int) -> None:
        for at, kind, event in self._history[:seen]:
            if at > version and kind == resource:
                await response.write(_line(event))
        while True:
            async with self._changed:
                while len(self._history) <= seen:
                    await self._changed.wait()
                news, seen = self._history[seen:], len(self._history)
            lines = b"".join(_line(event) for _, kind, event in news if kind in (resource, "*"))
            if lines:
                await response.write(lines)


@asynccontextmanager
async def kubernetes_api() -> AsyncIterator[KubernetesApi]:
    """One on a free port."""
    api = KubernetesApi()
    app = web.Application()
    for path in ("/api/v1", "/apis/discovery.k8s.io/v1"):
        app.router.add_get(f"{path}/namespaces/llm/{{resource}}", api.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    api.url = f"http://{host}:{port}"
    try:
        yield api
    finally:
        api.hang_up()
        await runner.cleanup()


def pod(
    name: str,
    ip: str | None,
    *,
    port: int = 8000,
    uid: str = "",
    ready: bool = True,
    leaving: bool = False,
    **labels: str,
) -> Manifest:
    metadata: Manifest = {
        "name": name,
        "namespace": "llm",
        "uid": uid or f"uid-of-{name}",
        "labels": {"app": "vllm", **labels},
        "managedFields": [{"manager": "kubelet", "operation": "Update"}],
    }
    if leaving:
        metadata |= {"deletionTimestamp": "2026-11-20T10:00:00Z", "deletionGracePeriodSeconds": 30}
    status: Manifest = {
        "phase": "Running" if ip else "Pending",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None}],
    }
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    spec = {
        "nodeName": "gpu-node-1",
        "containers": [
            {"name": "vllm", "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}]},
            {"name": "sidecar"},
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def endpoint(name: str, ip: str, *, uid: str = "", ready: bool | None = True, leaving: bool = False) -> Manifest:
    return {
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": ready, "terminating": leaving},
        "nodeName": "gpu-node-1",
        "zone": "z1",
        "targetRef": {"kind": "Pod", "name": name, "namespace": "llm", "uid": uid or f"uid-of-{name}"},
    }


def endpoint_slice(name: str, *endpoints: Manifest, family: str = "IPv4", ports: object = None) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "llm", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": family,
        "endpoints": list(endpoints) or None,
        "ports": ports if ports is not None else [{"name": "http", "protocol": "TCP", "port": 8000}],
    }


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(body, status=code)


def _line(event: Manifest) -> bytes:
    return json.dumps(event).encode() + b"\n"
