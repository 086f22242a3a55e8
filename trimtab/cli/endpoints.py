"""`trimtab endpoints`: what a running control plane has decided on each endpoint, and why."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.lab.states import state_text
from trimtab.policy import load_policy
from trimtab.process.errors import UserError
from trimtab.process.listening import reach
from xds_server.access import why_failed

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_TEXT = ("endpoint", "state", "reason")
_HEADINGS = ("endpoint", "state", "weight", "share", "in flight", "waiting", "TTFT ms", "reason")


async def endpoints(policy_path: Path, *, as_json: bool, console: Console) -> None:
    """Ask the control plane at the policy's `services.admin`, and show its answer. Raises PolicyError, UserError."""
    policy = load_policy(policy_path)
    pools = (await _page(policy.services.admin))["pools"]
    if as_json:
        sys.stdout.write(json.dumps({"pools": pools}, indent=2) + "\n")
        return
    for name, pool in pools.items():
        console.print(_table(name, pool))
    for name in [pool.name for pool in policy.pools if pool.name not in pools]:
        console.print(f"pool {name}: no endpoints are known yet", highlight=False)


async def _page(admin: str) -> Any:
    host, port = reach(admin)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/endpoints"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT, raise_for_status=True) as session, session.get(url) as page:
            return await page.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise UserError(f"services.admin {admin}: {why_failed(error)}: is trimtab running with this policy?") from None


def _table(name: str, pool: Mapping[str, Any]) -> Table:
    table = Table(title=_title(name, pool), title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    for heading in _HEADINGS:
        is_text = heading in _TEXT
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in pool["endpoints"]:
        ttft_s = row["ttft_s"]
        decided = list(row["classes"].values()) or [row]
        table.add_row(
            row["name"],
            state_text(row["state"]),
            " / ".join(f"{each['weight']:,}" if each["takes_work"] else "-" for each in decided),
            " / ".join(f"{each['share']:.1%}" if each["takes_work"] else "-" for each in decided),
            str(row["in_flight"]),
            _number(row["signals"]["waiting"]),
            _number(ttft_s and 1000 * ttft_s),
            Text(row["reason"].removeprefix(f"{row['state']}: ")),
        )
    for missing in pool["unresolved"]:
        table.add_row(missing, Text("unresolved", style="red"), *["-"] * 5, "its name does not resolve")
    return table


def _title(name: str, pool: Mapping[str, Any]) -> str:
    parts = [name]
    classes: Sequence[str] = list(pool["endpoints"][0]["classes"]) if pool["endpoints"] else []
    if classes:
        parts.append(f"weight and share of {' / '.join(classes)}")
    if pool["split"]:
        parts.append("its work goes to " + ", ".join(f"{to} {part:.0%}" for to, part in pool["split"].items()))
    if pool["discovery"] and pool["discovery"]["why"]:
        parts.append(f"{pool['discovery']['source']} does not answer: {pool['discovery']['why']}")
    return "; ".join(parts)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
