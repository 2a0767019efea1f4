"""A page as a browser makes it: what the script has drawn, and what it complained about."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def drawn(page: Path, profile: Path) -> str:
    """The document after the scripts ran, without a network; skips where no browser is installed."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    complaints = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    return result.stdout
