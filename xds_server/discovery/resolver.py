"""The system's resolver, without one name's silence holding up another."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

# Each look-up under way has sockets open; a burst of them for a large fleet would need more than a process may have.
# One that takes longer than usual is no longer counted, so that it holds up no other.
_AT_ONCE = 64
_USUAL_S = 0.5


class Resolver:
    """The IP addresses of a host name as the system orders them, IPv4 first; /etc/hosts and search domains count.

    An event loop's own look-ups share a few threads, which names that hang can take for as long as they like. Here
    each has a thread of its own. A look-up that is cancelled leaves its thread behind until the system gives up; the
    name gets no second thread before that, and the process can end meanwhile.

    Calling it raises OSError if the name does not resolve, UnicodeError if it is no name at all.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # A look-up is kept by its thread, and gone with it.
        self._running: WeakValueDictionary[str, Future[list[str]]] = WeakValueDictionary()

    async def __call__(self, host: str) -> Sequence[str]:
        async with self._slots:
            running = self._running.get(host)
            if running is None or running.done():
                running = self._running[host] = _start(host)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_USUAL_S):
                    await asyncio.wrap_future(running)
        return await asyncio.wrap_future(running)


def _start(host: str) -> Future[list[str]]:
    found: Future[list[str]] = Future()
    found.set_running_or_notify_cancel()  # nobody's giving up cancels it: its thread cannot be stopped

    def look_up() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except Exception as error:  # noqa: BLE001  # raised again where it is awaited
            found.set_exception(error)
        else:
            infos.sort(key=lambda info: info[0] != socket.AF_INET)
            found.set_result([str(info[4][0]) for info in infos])

    try:
        threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    except RuntimeError as error:
        found.set_exception(OSError(str(error)))
    return found
