"""Print the Python that `make install` should take: the first on PATH that was built with optimisations.

A broker takes a third fewer messages on one that was not, such as pyenv's by default. Where PATH has no better one it
is `python3`. Runs on any Python 3, since the one that runs it may be old.
"""

import json
import os
import subprocess
import sys

NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")
OLDEST = [3, 11]
# The same rule as contrailmq/_interpreter.py, asked of each Python by itself; one without venv cannot be used.
QUESTION = """
import ensurepip, json, sys, venv
sys.path[:0] = [sys.argv[1]]
from _interpreter import is_optimised
print(json.dumps([list(sys.version_info[:3]), is_optimised(), sys.base_prefix]))
"""
RULE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "src", "contrailmq")


def asked(path):
    """Version, whether it is optimised, and where it lives; None when it does not answer."""
    try:
        told = subprocess.run(
            [path, "-c", QUESTION, RULE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True
        )
        return json.loads(told.stdout.decode())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def candidates(search_path):
    folders = list(dict.fromkeys(filter(None, search_path.split(os.pathsep))))
    for name in NAMES:
        for folder in folders:
            path = os.path.join(folder, name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                yield path


def best(search_path):
    """The path to take, and a line that says why when it is not simply `python3`."""
    first = None
    for path in candidates(search_path):
        answer = asked(path)
        if answer is None or answer[0][:2] < OLDEST:
            continue
        if first is None:
            first = path, answer
        if answer[1]:
            version = ".".join(map(str, answer[0]))
            said = f"Python {version}, {path}, built with optimisations"
            return path, said + ("" if path == first[0] else f" ({first[0]} is not)")
    if first is None:
        return "python3", ""
    version = ".".join(map(str, first[1][0]))
    return first[0], f"Python {version}, {first[0]}, built without optimisations: no other is on PATH"


if __name__ == "__main__":
    chosen, why = best(os.environ.get("PATH", ""))
    if why:
        sys.stderr.write(f"==> {why}\n")
    print(chosen)
