"""Compiles `proto/` with grpcio-tools while the package is built or installed (editable installs too)."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        from grpc_tools import protoc

        root = Path(self.root)
        sources = sorted(str(p) for p in (root / "proto").rglob("*.proto"))
        out = str(root)
        status = protoc.main(
            ["protoc", f"-I{root / 'proto'}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *sources]
        )
        if status != 0:
            raise RuntimeError(f"protoc failed with status {status} on {sources}")
