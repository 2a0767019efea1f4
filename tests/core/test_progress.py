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
    assert err.count("a message") == 3


def test_messages_stand_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2, "counting", "word") as bar:
        bar.update(1)
        log_info("first")
        log_info("second")
    lines = [line.split("\r")[-1] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]


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


def test_an_unknown_length_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(None, "reading", "B", unit_scale=True) as bar:
        bar.update(2048)
    assert "2.05k" in capsys.readouterr().err
