"""The ext_proc workers in a process of their own: what is seen is pickled to a file."""

import asyncio
import pickle
import signal
import sys
from collections.abc import Sequence

import uvloop

from ext_proc.access_log import AccessLogService
from ext_proc.retry_decision import RetryAdvice
from ext_proc.server import serve_ext_proc
from ext_proc.service import ExtProcService
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import Observation
from trimtab.policy.model import Policy


async def _main(policy_json: str, file: str) -> None:
    policy = Policy.model_validate_json(policy_json)
    with open(file, "ab", buffering=0) as out:  # noqa: ASYNC230, PTH123

        def report(seen: Sequence[Observation]) -> None:
            out.write(b"".join(pickle.dumps(observation) for observation in seen))

        ext_proc = ExtProcService(
            report,
            RejectionReader.from_policy(policy.rejections),
            policy.ext_proc.full_stream_percent,
            policy.ext_proc.reject_timeout_ms / 1000,
            RetryAdvice(policy.pools),
        )
        address, shared_port = policy.services.ext_proc, policy.ext_proc.workers > 1
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        async with serve_ext_proc(address, ext_proc, AccessLogService(report), shared_port=shared_port):
            print("serving", flush=True)
            await done.wait()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
