"""The observers in a process of their own: what is seen is pickled to a file."""

import asyncio
import pickle
import signal
import sys
from collections.abc import Sequence

import uvloop

from ext_proc.access_log import AccessLogService
from ext_proc.server import serve_ext_proc
from ext_proc.service import ExtProcService
from ext_proc.verdict import RejectionReader
from trimtab.fleet.observation import Observation
from trimtab.policy.model import Rejections


async def _main(address: str, file: str, full_stream_percent: str, reject_timeout_s: str, shared_port: str) -> None:
    with open(file, "ab", buffering=0) as out:  # noqa: ASYNC230, PTH123

        def report(seen: Sequence[Observation]) -> None:
            out.write(b"".join(pickle.dumps(observation) for observation in seen))

        rejections = RejectionReader.from_policy(Rejections())
        ext_proc = ExtProcService(report, rejections, float(full_stream_percent), float(reject_timeout_s))
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        async with serve_ext_proc(address, ext_proc, AccessLogService(report), shared_port=shared_port == "True"):
            print("serving", flush=True)
            await done.wait()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
