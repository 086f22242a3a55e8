"""Run simulated engines: `python -m trimtab.sim.server --kind a100 --kind cpu --model NAME`.

The first line on standard output is JSON: `{"engines": [{"name", "kind", "address", "port"}, ...]}`.
"""

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence

import uvloop

from trimtab.sim.http import EngineServer
from trimtab.sim.kinds import KINDS, EngineKind


async def serve(engines: Sequence[tuple[EngineServer, int]], host: str, until_stdin_closes: bool) -> None:
    """Run engines, each on its port, until SIGINT or SIGTERM. Raises OSError if one cannot listen."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin, stop.set)
    try:
        for engine, port in engines:
            await engine.start(host, port)
        listening = [
            {
                "name": engine.name,
                "kind": engine.kind.name,
                "address": engine.address,
                "port": int(engine.address.rpartition(":")[2]),
            }
            for engine, _ in engines
        ]
        sys.stdout.write(json.dumps({"engines": listening}) + "\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        for engine, _ in engines:
            await engine.stop()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trimtab.sim.server",
        description="Simulated engines that speak like vLLM; docs/results/engine-model.md says what they model.",
        epilog="Faults: POST /control/fault to an engine, as in "
        """curl ADDRESS/control/fault -d '{"kind": "saturate_429", "for_s": 30}'; the kind "none" heals it.""",
    )
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), required=True, help="once per engine")
    parser.add_argument("--name", action="append", default=[], help="once per engine; default: its kind")
    parser.add_argument("--port", action="append", type=int, default=[], help="once per engine; 0 is a free one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="sim", help="the model's name")
    for flag in ("max-num-seqs", "max-model-len", "max-num-queued-reqs", "max-num-queued-tokens"):
        parser.add_argument(f"--{flag}", type=int, help="as in vLLM; default: the kind's")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the process that started this")
    arguments = parser.parse_args(argv)
    for name in ("name", "port"):
        if len(getattr(arguments, name)) > len(arguments.kind):
            parser.error(f"more --{name} than --kind")
    return arguments


def _kind(arguments: argparse.Namespace, name: str) -> EngineKind:
    flags = ("max_num_seqs", "max_model_len", "max_num_queued_reqs", "max_num_queued_tokens")
    given = {flag: value for flag in flags if (value := getattr(arguments, flag)) is not None}
    return dataclasses.replace(KINDS[name], **given)


def _names(arguments: argparse.Namespace) -> list[str]:
    """A name for each engine; of two of a kind the second is kind-2."""
    names: list[str] = list(arguments.name)
    for kind in arguments.kind[len(names) :]:
        taken = sum(name == kind or name.startswith(f"{kind}-") for name in names)
        names.append(f"{kind}-{taken + 1}" if taken else kind)
    return names


async def _main(arguments: argparse.Namespace) -> None:
    ports = arguments.port + [0] * (len(arguments.kind) - len(arguments.port))
    engines = [
        (EngineServer(_kind(arguments, kind), model=arguments.model, name=name), port)
        for kind, name, port in zip(arguments.kind, _names(arguments), ports, strict=True)
    ]
    await serve(engines, arguments.host, arguments.until_stdin_closes)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = _arguments(argv)
    try:
        uvloop.run(_main(arguments))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
