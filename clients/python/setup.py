"""Makes winnow/v1/*_pb2.py, and their types, of the project's .proto files. Everything else is in pyproject.toml."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROTO = Path(__file__).resolve().parent.parent.parent / "proto"
# Those of the API, and what they are made of.
MESSAGES = ["admin", "generation", "identity", "membership", "model", "rank", "sampling", "selection", "tokenizer"]


class BuildWithMessages(build_py):
    def run(self) -> None:
        super().run()
        protoc = os.environ.get("PROTOC") or shutil.which("protoc")
        if protoc is None:
            raise SystemExit("protoc is not installed (Debian: protobuf-compiler); PROTOC may say where it is")
        files = [f"winnow/v1/{name}.proto" for name in MESSAGES]
        out = self.build_lib
        subprocess.run([protoc, f"--python_out={out}", f"--pyi_out={out}", f"-I{PROTO}", *files], check=True)
        (Path(out) / "winnow" / "v1" / "__init__.py").touch()


setup(cmdclass={"build_py": BuildWithMessages})
