"""Who may import whom, and how long a file may be: read from the sources, nothing is imported."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for top in ("trimtab", "xds_server", "ext_proc")
    for path in (ROOT / top).rglob("*.py")
    if "v1" not in path.parts
)

# The rooms, from the bottom up: each may import from those above it in this list, and from itself.
CORE = (
    "trimtab.strict",
    "trimtab.tokens",
    "trimtab.datapath",
    "trimtab.observation",
    "trimtab.stats",
    "trimtab.endpoint",
    "trimtab.scoring",
    "trimtab.policy",
    "trimtab.llmapi",
    "trimtab.health",
    "trimtab.decision",
    "trimtab.weights",
    "trimtab.pool",
)
PROCESSES = ("trimtab.process", "xds_server", "ext_proc")
TOOLS = ("trimtab.sim", "trimtab.lab", "trimtab.cli")
ROOMS = (*CORE, *PROCESSES, *TOOLS)
# ext_proc and xds_server meet in trimtab.datapath alone, but for the share of watched attempts, which both reckon with.
EXCEPTIONS = {("xds_server.control_plane", "ext_proc.sampling")}
# Within xds_server, likewise; what is not named is the control plane itself, which may import all of it.
SERVER = (
    "xds_server.access",
    "xds_server.ads",
    "xds_server.signals",
    "xds_server.probes",
    "xds_server.discovery",
    "xds_server.config",
    "xds_server.admin",
)
# The most lines of a file; policy.model is the types of the YAML, all in one place.
MOST_LINES = 400
LONGER = {"trimtab.policy.model"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All of a module's statements but for those that only a type checker reads."""
    for node in nodes:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                yield from statements([inner for inner in value if isinstance(inner, ast.stmt)])


def imports_of(path: Path) -> set[str]:
    """The modules of ours that a module imports, within functions too."""
    found = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & MODULES.keys()) or ({node.module} & MODULES.keys())
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
    return found - {name_of(path)}


IMPORTS: Mapping[str, set[str]] = {name: imports_of(path) for name, path in MODULES.items()}


def room_of(module: str, rooms: tuple[str, ...]) -> str | None:
    return next((room for room in rooms if module == room or module.startswith(f"{room}.")), None)


def test_there_are_no_circles() -> None:
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("rooms", [ROOMS, SERVER], ids=["rooms", "within xds_server"])
def test_rooms_import_only_those_above_them(rooms: tuple[str, ...]) -> None:
    wrong = []
    for module, imported in IMPORTS.items():
        room = room_of(module, rooms)
        for other in imported:
            its_room = room_of(other, rooms)
            if room is None or its_room is None or (module, other) in EXCEPTIONS:
                continue
            if rooms.index(its_room) > rooms.index(room) or {room, its_room} == {"ext_proc", "xds_server"}:
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_every_module_has_a_room() -> None:
    assert [module for module in MODULES if room_of(module, ROOMS) is None] == ["trimtab"]


def test_the_core_does_no_io() -> None:
    outside = {"asyncio", "socket", "grpc", "aiohttp", "time", "subprocess", "threading"}
    pure = [room for room in CORE if room not in ("trimtab.policy", "trimtab.datapath")]
    wrong = []
    for module, path in MODULES.items():
        if room_of(module, tuple(pure)) is None:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{module} imports {name}" for name in names if name.partition(".")[0] in outside]
    assert wrong == []


def test_no_file_is_too_long() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES and name not in LONGER} == {}
