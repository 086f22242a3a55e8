"""What is needed to run the whole of Trimtab on loopback beside other things."""

from typing import Any

import aiohttp

from trimtab.process.listening import free_port


def on_free_ports() -> dict[str, Any]:
    """The head of a policy: every port free, and nothing kept over a restart."""
    listen, xds, ext_proc, admin, envoy_admin = (free_port() for _ in range(5))
    return {
        "version": 1,
        "listen": {"port": listen},
        "services": {
            "xds": f"127.0.0.1:{xds}",
            "ext_proc": f"127.0.0.1:{ext_proc}",
            "admin": f"127.0.0.1:{admin}",
            "envoy_admin": f"127.0.0.1:{envoy_admin}",
        },
        "state_file": None,
    }


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a GET of `url` is a 200."""
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False
