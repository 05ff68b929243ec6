"""Make `proxy/protocol/descriptors.py` of `v2.proto`: the compiled form that is shipped, so that nobody compiles it.

python tools/grpc_protocol.py            write it
python tools/grpc_protocol.py --check    fail when it is not what the .proto file says
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from base64 import b85encode
from importlib.resources import files
from pathlib import Path

PROTOCOL = Path(__file__).parents[1] / "src/contrailmq/proxy/protocol"

HEAD = '''"""What `v2.proto` compiles to. Written by tools/grpc_protocol.py; edit the .proto file."""

from __future__ import annotations

from typing import Final

DESCRIPTORS: Final = (
'''


def compiled() -> str:
    from grpc_tools import protoc  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        well_known = str(files("grpc_tools") / "_proto")
        arguments = ["", f"-I{PROTOCOL}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, str(PROTOCOL / "v2.proto")]):
            raise SystemExit("v2.proto does not compile")
        text = b85encode(out.read_bytes()).decode()
    return HEAD + "".join(f'    b"{line}"\n' for line in textwrap.wrap(text, 110)) + ")\n"


def main() -> None:
    target, text = PROTOCOL / "descriptors.py", compiled()
    if "--check" not in sys.argv:
        target.write_text(text)
    elif target.read_text() != text:
        raise SystemExit("descriptors.py is not what v2.proto says: run python tools/grpc_protocol.py")


if __name__ == "__main__":
    main()
