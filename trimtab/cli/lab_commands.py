"""The commands that show the product off, hurt it on purpose, and replay traces.

Each imports what it runs only when it is called.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trimtab.cli.app import app, run, wide_console
from trimtab.process.errors import UserError, ensure_folder


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
        figures = await demo_run.demo(requests, seconds, names, seed, wide_console())
        if report is not None:
            report.write_text(json.dumps(figures, indent=2) + "\n")

    run(main())


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
            wide_console().print(showing.table(found))
        if missed:
            raise typer.Exit(1)

    run(main())


@app.command()
def replay(
    context: typer.Context,
    fleet: Annotated[str, typer.Option(help="A fleet file, or a bundled fleet.", metavar="FLEET.yaml")] = "fleet8",
    trace: Annotated[
        str | None,
        typer.Option(help="A trace file or a bundled trace; default: the fleet's own workload.", metavar="FILE.csv"),
    ] = None,
    strategies: Annotated[
        str,
        typer.Option(help="Scoring strategies, and the balancers round_robin, least_request, random, capacity, ..."),
    ] = "round_robin,least_request,capacity,health,predicted_ttft",
    policy: Annotated[
        Path | None, typer.Option(help="Numbers for the strategies and all around them.", metavar="POLICY.yaml")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Of the policy; default: its first pool.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Instead of strategies: two policies.", metavar="A.yaml B.yaml")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1e6, help="Arrivals come so many times as fast.")] = 1,
    length: Annotated[float, typer.Option(min=0.001, max=1000, help="Prompts are so many times as long,")] = 1,
    max_prompt: Annotated[int | None, typer.Option(min=1, help="and at most so many tokens.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Only the first so many.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e6, help="Of the fleet's own workload, requests/s.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, max=100_000, help="Closed loop of so many clients.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Replays of each strategy, each with other chances.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Envoys in front of the engines,")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=128, help="and worker threads of each.")] = 1,
    cut_after_s: Annotated[
        float | None, typer.Option(min=0, help="Cut off what is open so long after the last arrival; default: never.")
    ] = None,
    patience_s: Annotated[
        float | None, typer.Option(min=0.001, help="Clients leave when no token came for so long; default: never.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The strategy that others are compared with; default: the first.")
    ] = None,
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
    """Replay a trace in virtual time: what each strategy, or another policy, would have done to it."""
    from trimtab.lab.replay import plot as plotting
    from trimtab.lab.replay import run as replaying
    from trimtab.lab.replay import show as showing
    from trimtab.sim.replay.simulation import Conditions

    replaying.refuse_idle_options({name for name in context.params if _is_given(context, name)})
    if report is not None:
        ensure_folder("--report", report)
    if plot is not None:
        plotting.check_plot(plot)
    if validate:
        from trimtab.lab.validate import validate as run_both

        compared = run_both(validate_s, seeds, wide_console())
        if report is not None:
            replaying.write_report(compared, report)
        return
    wanted = replaying.Wanted(
        trace=trace,
        fleet=fleet,
        strategies=strategies,
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
        showing.show(figures, wide_console())
    # After what is shown: a file that cannot be written must not cost a long replay.
    if report is not None:
        replaying.write_report(figures, report)
    if plot is not None:
        plotting.plot(made, showing.title(figures), plot)
