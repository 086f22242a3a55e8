"""Run as a process: calls `xds:///svc` again and again through grpcio's own xDS client, and prints each answer."""

import time

import grpc


def main() -> None:
    with grpc.insecure_channel("xds:///svc") as channel:
        who = channel.unary_unary("/test.Echo/Who")
        while True:
            try:
                answer = who(b"", timeout=10, wait_for_ready=True).decode()
            except grpc.RpcError as error:
                answer = f"failed: {error.code().name}"
            print(answer, flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
