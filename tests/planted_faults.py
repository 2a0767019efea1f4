"""Planted faults: does the test suite see them, and which tier does?

Each entry of `planted_faults.toml` replaces one piece of a source file: an off-by-one in a mask, a swapped
rate, a missing escape. The tree is copied, the fault planted there, and the tests of `make test` run until
one fails, beginning with the paths that the entry names; if none fails, the slow tests run.

    python tests/planted_faults.py                      all faults, hours where they stay unseen
    python tests/planted_faults.py --only mask cache    those whose names hold one of these words
    python tests/planted_faults.py --check              only see that each piece is there exactly once

A test that fails without the fault, too, is no proof and ends the program. The last line of stdout is one
JSON object: by fault the tier and the test that caught it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".toml")
TIERS = {"fast": "not slow", "slow": "slow"}


def source_of(fault: dict[str, str], root: Path = ROOT) -> str:
    """The source file of a fault, in which its piece has to be exactly once."""
    text = (root / fault["file"]).read_text(encoding="utf-8")
    count = text.count(fault["find"])
    if count != 1:
        raise SystemExit(f"{fault['name']}: {fault['file']} holds its piece {count} times")
    return text


def plant(fault: dict[str, str], root: Path) -> None:
    text = source_of(fault, root)
    (root / fault["file"]).write_text(text.replace(fault["find"], fault["replace"]), encoding="utf-8")


def first_failure(root: Path, marker: str, paths: list[str], workers: str) -> str:
    """The first test that fails, or an empty string."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", workers,
               "--dist", "worksteal", "-m", marker, *paths]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "CI": "1"}
    with tempfile.TemporaryFile("w+") as output:  # no pipe: a test may leave processes that hold it
        status = subprocess.run(
            command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
        output.seek(0)
        text = output.read()
    if status in (0, 5):  # all passed, or no test of this tier there
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return failed[1] if failed else text.strip().splitlines()[-1]


def caught_by(fault: dict[str, str], workers: str) -> dict[str, str | float]:
    """The tier that sees a fault, "none" if neither does."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "tree")
        root.mkdir()
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        plant(fault, root)
        for tier, marker in TIERS.items():
            for paths in ([path for path in fault["tests"].split() if (root / path).exists()], ["tests"]):
                if failed := first_failure(root, marker, paths, workers):
                    if first_failure(ROOT, marker, [failed], "0"):
                        raise SystemExit(f"{fault['name']}: {failed} fails without it")
                    return {"tier": tier, "test": failed, "seconds": round(time.monotonic() - start)}
    return {"tier": "none", "test": "", "seconds": round(time.monotonic() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--workers", default="auto", help="as pytest-xdist's -n")
    settings = parser.parse_args()
    faults = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    if settings.only:
        faults = [fault for fault in faults if any(word in fault["name"] for word in settings.only)]
    for fault in faults:
        source_of(fault)
    if settings.check:
        return
    results = {}
    for fault in faults:
        result = results[fault["name"]] = caught_by(fault, settings.workers)
        line = f"{fault['name']:<44} {result['tier']:<5} {result['seconds']:>5} s  {result['test']}"
        print(line, flush=True)
    tiers = [result["tier"] for result in results.values()]
    counts = {tier: tiers.count(tier) for tier in (*TIERS, "none")}
    print(json.dumps({"faults": len(tiers), **counts, "results": results}))


if __name__ == "__main__":
    main()
