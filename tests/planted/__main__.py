"""Measures what the quick tests find: plants the faults of `faults.py`, one at a time, in a copy of the checkout, and
runs the quick tests of the part that covers the changed file.

    python -m tests.planted                        # all faults
    python -m tests.planted --only=layers          # those whose file or name contains "layers"
    python -m tests.planted --results=found.jsonl  # continues after the faults that the file already has

A fault is found if a test fails that passes without it. Prints a line for each fault, and the missed ones at the end;
exits with 1 if fewer than nine tenths are found."""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.planted.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SECONDS = 1800  # that the tests of one fault may take; a fault that makes them hang is missed
FAILED = 1  # the exit code of pytest where tests failed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or name contains this")
    parser.add_argument("--results", type=Path, help="a JSON Lines file of results, which is continued")
    chosen = parser.parse_args()
    faults = [fault for fault in FAULTS if chosen.only in f"{fault.file} {fault.name}"]
    known = {}
    if chosen.results and chosen.results.exists():
        known = {line["name"]: line["found"] for line in map(json.loads, chosen.results.read_text().splitlines())}
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = checkout(Path(folder) / "checkout")
        environment = environment_of(copy, Path(folder))
        for fault in faults:
            if fault.name in known:
                continue
            start = time.monotonic()
            with planted(copy, fault):
                code, by = run(copy, fault.covering_tests, environment)
            found = code not in (0, None)
            if found and run(copy, (by,), environment)[0] != 0:
                found, by = False, f"{by} fails without the fault too"
            known[fault.name] = found
            seconds = time.monotonic() - start
            print(f"{'found ' if found else 'MISSED'} {seconds:5.0f} s  {fault.file}: {fault.name}  {by}", flush=True)
            if chosen.results:
                with chosen.results.open("a") as file:
                    file.write(json.dumps({"name": fault.name, "file": fault.file, "found": found, "by": by}) + "\n")
    missed = [fault for fault in faults if not known[fault.name]]
    print(f"\n{len(faults) - len(missed)} of {len(faults)} planted faults were found")
    for fault in missed:
        print(f"missed: {fault.file}: {fault.name}")
    return int(10 * len(missed) > len(faults))


def checkout(target: Path) -> Path:
    """Copies the files that git knows."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def environment_of(copy: Path, folder: Path) -> dict[str, str]:
    """The environment of the tests: they import the copy, and share compiled programs, which are named by hashes."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
             "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    return cache | os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def planted(copy: Path, fault: Fault):
    """Changes the file of a fault, and restores it."""
    path = copy / fault.file
    before = path.read_text()
    if before.count(fault.before) != 1:
        raise SystemExit(f"{fault.file} has {fault.before!r} {before.count(fault.before)} times; correct faults.py")
    path.write_text(before.replace(fault.before, fault.after))
    try:
        yield
    finally:
        path.write_text(before)


def run(copy: Path, tests: Sequence[str], environment: dict[str, str]) -> tuple[int | None, str]:
    """(the exit code of pytest on the quick ones of `tests`, None if it does not end; the first test that fails)."""
    words = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-rfE", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, check=False,
                              timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"no end within {SECONDS} s"
    failed = [line.partition(" ")[2].split(" - ")[0] for line in done.stdout.splitlines()
              if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode not in (0, FAILED) and not failed:
        raise SystemExit(f"pytest {' '.join(tests)} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return done.returncode, failed[0] if failed else ""


if __name__ == "__main__":
    sys.exit(main())
