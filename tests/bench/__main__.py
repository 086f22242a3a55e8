"""Every benchmark in one run: `make bench`. They print ratios within the run, for machines differ."""

import platform
import runpy
from pathlib import Path

import psutil
from rich.console import Console

from trimtab.process.envoy_binary import envoy_version, find_envoy

BENCHES = ("observation", "xds_push", "scrape", "stream_reading", "heart", "windows", "loop", "picks", "replay")


def machine() -> str:
    """The machine in a line."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"{psutil.cpu_count()} cores of {cpu}, {memory_gib:.0f} GiB; "
        f"Python {platform.python_version()}, Envoy {envoy_version(find_envoy())}"
    )


def main() -> None:
    console = Console()
    console.print(machine(), highlight=False)
    for bench in BENCHES:
        console.print(f"\n{bench}", style="bold")
        runpy.run_module(f"tests.bench.{bench}", run_name="__main__")


if __name__ == "__main__":
    main()
