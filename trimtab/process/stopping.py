"""Signals that end the program in good order, and the one that does not end it."""

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def ignore_hangup() -> None:
    """Outlive SIGHUP, which asks a service to read its configuration again: ours is read whenever its file changes.

    To be called before anything that takes time. Children inherit it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def unless_stopped(stop: asyncio.Event, work: Awaitable[object]) -> None:
    """Wait for `work`, or until `stop` is set: then the work is given up."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
