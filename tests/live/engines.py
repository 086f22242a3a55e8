"""Real inference engines as children of the tests, each from an environment of its own."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.harness import free_port, until
from tests.live.tiny_model import NAME
from tests.system.stack import Process

_HERE = Path(__file__).parent
_HOW = "docs/results/real-engines.md says how"

# One thread each: the machine is shared, and two servers have to keep their unlike speeds.
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def vllm_command() -> str | None:
    """The executable that TRIMTAB_VLLM names, or the one on PATH."""
    return shutil.which(os.environ.get("TRIMTAB_VLLM", "vllm"))


def llamacpp_python() -> str | None:
    """The Python that TRIMTAB_LLAMACPP_PYTHON names: of an environment with xllamacpp and gguf."""
    return shutil.which(os.environ.get("TRIMTAB_LLAMACPP_PYTHON", ""))


NO_VLLM = f"no vLLM: put vllm on PATH, or its path into TRIMTAB_VLLM ({_HOW})"
NO_LLAMACPP = f"no llama.cpp: set TRIMTAB_LLAMACPP_PYTHON to a Python with xllamacpp and gguf ({_HOW})"


class Engine(Process):
    """An engine's server on a free port of loopback, and what it says of itself without Trimtab in between."""

    def __init__(self, log: Path, port: int, command: Sequence[str]) -> None:
        self.address = f"127.0.0.1:{port}"
        # Engines log to their standard output, which nobody reads.
        to_stderr = (shutil.which("sh") or "/bin/sh", "-c", 'exec "$@" >&2', "sh")
        super().__init__(*to_stderr, "nice", "-n", "10", *command, log=log)

    @property
    def family(self) -> list[psutil.Process]:
        """The processes that it has started itself."""
        return psutil.Process(self.pid).children(recursive=True) if self.alive else []

    async def stop(self) -> None:
        family = self.family
        await super().stop()
        for process in family:
            if process.is_running():
                process.kill()

    async def wait_healthy(self, timeout_s: float = 420) -> None:
        async def is_healthy() -> bool:
            assert self.alive, f"the engine ended:\n{self.log()[-4000:]}"
            return await self.health() == 200

        await until(is_healthy, timeout_s)

    async def health(self) -> int:
        """The status of its own health page; 0 without an answer."""
        try:
            return (await self.ask("GET", "/health"))[0]
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0

    async def ask(self, method: str, path: str, **request: Any) -> tuple[int, Any, Any]:
        """A request straight to the engine: status, body and headers of the answer."""
        deadline = aiohttp.ClientTimeout(total=30)
        async with (
            aiohttp.ClientSession(f"http://{self.address}", timeout=deadline) as session,
            session.request(method, path, **request) as answer,
        ):
            json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if json else answer.text()), answer.headers

    async def metrics(self) -> dict[str, float]:
        """Its page, series of one name added up; buckets are left out."""
        _, page, _ = await self.ask("GET", "/metrics")
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if "le" not in sample.labels:
                    found[sample.name] = found.get(sample.name, 0) + sample.value
        return found


class Vllm(Engine):
    """`vllm serve` with random weights. It takes 30 to 90 s to start."""

    def __init__(self, model: Path, *, sequences: int, queued: int) -> None:
        """`sequences` are decoded at once; one more than `queued` in all is refused."""
        port = free_port()
        serve = [
            "env",
            *(f"{name}={value}" for name, value in _VLLM_ENVIRONMENT.items()),
            *(vllm_command() or "vllm", "serve", str(model), "--served-model-name", NAME),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
            *("--block-size", "32", "--num-gpu-blocks-override", "320"),
            *("--max-num-seqs", str(sequences), "--max-num-queued-reqs", str(queued)),
        ]
        super().__init__(model.with_suffix(".log"), port, serve)

    @property
    def core(self) -> psutil.Process:
        """The process that schedules and generates; the one that was started only answers HTTP."""
        (core,) = (process for process in self.family if process.name().startswith("VLLM::EngineCor"))
        return core


class LlamaCpp(Engine):
    """llama.cpp's server with random weights, `slots` of them at once. It refuses nothing."""

    def __init__(self, model: Path, *, slots: int) -> None:
        port = free_port()
        serve = [llamacpp_python() or "python", str(_HERE / "llamacpp_server.py"), str(model), str(port), str(slots)]
        super().__init__(model.with_suffix(".log"), port, serve)
