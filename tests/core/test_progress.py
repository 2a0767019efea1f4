import subprocess
import sys

import pytest

from cpplm.core.progress import log_info, progress_bar


def test_bars_and_messages_go_to_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(3, "counting", "word") as bar:
        for _ in range(3):
            log_info("a message")
            bar.update(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting" in err
    assert "3/3" in err
    lines = [line.split("\r")[-1] for line in err.splitlines()]
    assert lines.count("a message") == 3  # on lines of their own


def test_a_log_file_is_not_flooded() -> None:
    """Ten thousand updates within a moment: the bar at its start and its end, not ten thousand lines."""
    code = (
        "from cpplm.core.progress import progress_bar\n"
        "with progress_bar(10_000, 'working', 'step') as bar:\n"
        "    for _ in range(10_000):\n        bar.update(1)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    assert "10000/10000" in result.stderr or "10.0k/10.0k" in result.stderr
    assert result.stderr.count("working") <= 3
