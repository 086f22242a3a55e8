"""Compiles `proto/` with grpcio-tools while the package is built or installed (editable installs too)."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        from grpc_tools import protoc

        root = Path(self.root)
        sources = sorted(str(path) for path in (root / "proto").rglob("*.proto"))
        outputs = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
        status = protoc.main(["protoc", f"-I{root / 'proto'}", *outputs, *sources])
        if status != 0:
            raise RuntimeError(f"protoc failed with status {status} on {sources}")
