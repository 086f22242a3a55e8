"""A real Prometheus server, and pages for it to scrape."""

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness import free_port
from trimtab.process.child import tied

ROOT = Path(__file__).parents[4]
_UNPACKED = ROOT / ".venv" / "prometheus" / "usr" / "bin" / "prometheus"
SCRAPE_INTERVAL_S = 1.0


def prometheus_binary() -> str:
    """The server's program; without one the test is skipped, or fails where REQUIRE_PROMETHEUS is set."""
    found = shutil.which("prometheus") or (str(_UNPACKED) if _UNPACKED.exists() else None)
    if found is None:
        reason = "no prometheus: install it, or let `make test` fetch Debian's"
        if os.environ.get("REQUIRE_PROMETHEUS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0, what: str = "") -> Any:
    """The first true value of `condition()`. Raises AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(0.05)
    return value


class PrometheusServer:
    """One server, which scrapes `jobs` (name -> addresses) every second."""

    def __init__(self, folder: Path, jobs: Mapping[str, list[str]], web_config: str = "") -> None:
        self._folder = folder
        self._log = folder / "prometheus.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        config = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S:g}s"},
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": addresses}]} for name, addresses in jobs.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        (folder / "web.yml").write_text(web_config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it answers."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied(
                    prometheus_binary(),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--web.config.file={self._folder / 'web.yml'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                ),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_for(self._is_ready, what="Prometheus to be ready")

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A black hole: it takes connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def has(self, query: str) -> bool:
        """Whether a query gives anything."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(json.load(answer)["data"]["result"])

    def _is_ready(self) -> bool:
        assert self._process is not None
        # Who may not ask, or asks without TLS, is told so long before there are answers.
        log = self._log.read_text()
        assert self._process.poll() is None, log
        return "Server is ready to receive web requests" in log


class Page:
    """A metrics page at an address of its own, with the text that a test gives it."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def simulated_engines(*names: str) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """A process with simulated engines, and their addresses."""
    arguments = [word for name in names for word in ("--kind", "a100", "--name", name)]
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.sim.server", *arguments, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield process, [engine["address"] for engine in json.loads(process.stdout.readline())["engines"]]
    finally:
        process.kill()
        process.communicate()
