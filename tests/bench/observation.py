"""What observation costs: latency, throughput and CPU, as ratios to a bare Envoy in the same run.

Needs `wrk` (a Debian package). The upstream is an Envoy that answers every request at once with a short event stream,
so what is measured is the gateway and nothing else. All variants are up all the time and are loaded in turn.
"""

import argparse
import asyncio
import json
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.harness import EnvoyProcess, free_port
from tests.system.stack import Trimtab
from trimtab.lab.demo.plain_envoy import plain_bootstrap
from trimtab.lab.local_stack import on_free_ports
from trimtab.policy import load_policy
from trimtab.policy.model import Retries
from xds_server.config.bootstrap import render_bootstrap

GATED = "gated"
PROTOCOLS: dict[str, float | None] = {"bare": None, GATED: 100, "100 %": 100, "20 %": 20, "5 %": 5, "off": 0}
"""The share of answers that are watched; None is an Envoy without Trimtab. The access log is on in all others."""

_EVENTS = "".join(
    f'data: {{"id":"x","choices":[{{"index":0,"delta":{{"content":" token{n}"}}}}]}}\n\n' for n in range(4)
)
_STREAM = _EVENTS + "data: [DONE]\n\n"
_WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
wrk.headers["content-type"] = "application/json"
"""


@dataclass
class Gateway:
    """One gateway under measurement."""

    url: str
    envoy: psutil.Process
    python: psutil.Process | None
    latency_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    envoy_us: list[float] = field(default_factory=list)
    python_us: list[float] = field(default_factory=list)


async def start(name: str, percent: float | None, upstream: str, folder: Path, stack: AsyncExitStack) -> Gateway:
    folder.mkdir()
    if percent is None:
        port, admin = free_port(), free_port()
        bootstrap = plain_bootstrap(
            port=port, admin_port=admin, endpoints=[upstream], weights=[1], policy="least_request", retries=Retries()
        )
        envoy = EnvoyProcess(bootstrap, f"127.0.0.1:{admin}", folder)
        stack.push_async_callback(envoy.stop)
        await envoy.start()
        return Gateway(f"http://127.0.0.1:{port}", psutil.Process(envoy.pid), None)
    policy = {
        **on_free_ports(),
        # Out of reach, so that the share is what the gateway says.
        "ext_proc": {"sample_percent": percent, "cpu_budget_cores": 64},
        "pools": [
            {
                "name": "m",
                "endpoints": [{"address": upstream}],
                "signals": {"scrape": False},
                "gate": {"enabled": name == GATED},
            }
        ],
    }
    serve = Trimtab(folder, "serve", policy)
    stack.push_async_callback(serve.stop)
    await serve.start()
    loaded = load_policy(serve.policy_file)
    envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, folder)
    stack.push_async_callback(envoy.stop)
    await envoy.start()
    await serve.wait_serving()
    return Gateway(serve.url, psutil.Process(envoy.pid), psutil.Process(serve.pid))


async def upstream(folder: Path, stack: AsyncExitStack) -> str:
    """An Envoy that answers everything with one short stream; its address."""
    port, admin = free_port(), free_port()
    bootstrap = json.loads(
        plain_bootstrap(
            port=port, admin_port=admin, endpoints=["127.0.0.1:1"], weights=[1], policy="random", retries=Retries()
        )
    )
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    header = {"header": {"key": "content-type", "value": "text/event-stream"}}
    chain["route_config"]["virtual_hosts"][0]["routes"] = [
        {
            "match": {"prefix": "/"},
            "direct_response": {"status": 200, "body": {"inline_string": _STREAM}},
            "response_headers_to_add": [{**header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        }
    ]
    envoy = EnvoyProcess(json.dumps(bootstrap), f"127.0.0.1:{admin}", folder)
    stack.push_async_callback(envoy.stop)
    await envoy.start()
    return f"127.0.0.1:{port}"


async def load(gateway: Gateway, script: Path, connections: int, seconds: float) -> tuple[float, float]:
    """Requests a second, and the median latency in ms."""
    wrk = await asyncio.create_subprocess_exec(
        *("wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script)),
        f"{gateway.url}/v1/chat/completions",
        stdout=asyncio.subprocess.PIPE,
    )
    text = (await wrk.communicate())[0].decode()
    if "Non-2xx" in text or wrk.returncode != 0:
        raise RuntimeError(f"the load failed:\n{text}")
    per_s = re.search(r"Requests/sec:\s+([\d.]+)", text)
    latency = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    assert per_s is not None
    assert latency is not None
    return float(per_s[1]), float(latency[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[latency[2]]


def cpu(process: psutil.Process | None) -> float:
    return 0.0 if process is None else sum(process.cpu_times()[:2])


async def measure(gateway: Gateway, script: Path, seconds: float) -> None:
    _, latency_ms = await load(gateway, script, 1, seconds)
    gateway.latency_ms.append(latency_ms)
    envoy, python = cpu(gateway.envoy), cpu(gateway.python)
    per_s, _ = await load(gateway, script, 16, seconds)
    await asyncio.sleep(0.3)  # what is still observed belongs to these requests
    requests = per_s * seconds
    gateway.per_s.append(per_s)
    gateway.envoy_us.append(1e6 * (cpu(gateway.envoy) - envoy) / requests)
    gateway.python_us.append(1e6 * (cpu(gateway.python) - python) / requests)


async def run(rounds: int, seconds: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trimtab-bench-")))
        script = folder / "post.lua"
        script.write_text(_WRK_SCRIPT)
        (folder / "upstream").mkdir()
        address = await upstream(folder / "upstream", stack)
        gateways = {
            name: await start(name, percent, address, folder / f"v{number}", stack)
            for number, (name, percent) in enumerate(PROTOCOLS.items())
        }
        ratios: dict[str, list[float]] = defaultdict(list)
        for _ in track(range(rounds), "observation", console=Console(stderr=True)):
            for name, gateway in gateways.items():
                await measure(gateway, script, seconds)
                ratios[name].append(gateway.per_s[-1] / gateways["bare"].per_s[-1])
        bare = median(gateways["bare"].latency_ms)
        for name, gateway in gateways.items():
            figures[name] = {
                "added_p50_ms": median(gateway.latency_ms) - bare,
                "p50_ratio": median(gateway.latency_ms) / bare,
                "requests_per_s_ratio": median(ratios[name]),
                "envoy_cpu_ratio": median(gateway.envoy_us) / median(gateways["bare"].envoy_us),
                "python_us_per_attempt": median(gateway.python_us),
            }
    return figures


def table(figures: dict[str, Any]) -> Table:
    shown = Table(title="Observation, against a bare Envoy", title_justify="left")
    for heading in ("watched", "P50 added ms", "P50 ratio", "req/s ratio", "Envoy CPU ratio", "Python µs / attempt"):
        shown.add_column(heading, justify="left" if heading == "watched" else "right")
    for name, row in figures.items():
        shown.add_row(
            name,
            f"{row['added_p50_ms']:.2f}",
            f"{row['p50_ratio']:.2f}",
            f"{row['requests_per_s_ratio']:.2f}",
            f"{row['envoy_cpu_ratio']:.2f}",
            f"{row['python_us_per_attempt']:.0f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.observation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="each load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is needed: apt-get install wrk")
    figures = asyncio.run(run(arguments.rounds, arguments.seconds))
    if arguments.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    else:
        Console().print(table(figures))


if __name__ == "__main__":
    main()
