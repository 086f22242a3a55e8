"""A control plane of nothing but feedback, for tests that stop or kill it: `feedback_server.py TARGET`.

Prints `listening`, then for each batch a line with its request ids.
"""

import asyncio
import sys

import grpc

from trimtab.v1.observation_stream_pb2_grpc import add_ObservationStreamServicer_to_server
from xds_server.observation_stream import ObservationStreamService


async def main(target: str) -> None:
    service = ObservationStreamService(
        lambda observations: print(*(o.request_id for o in observations), flush=True),
        lambda worker, cpu_seconds, watched, dropped, faults, gated: None,
        lambda worker: None,
    )
    server = grpc.aio.server()
    add_ObservationStreamServicer_to_server(service, server)
    server.add_insecure_port(target)
    await server.start()
    print("listening", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
