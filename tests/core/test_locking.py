"""A second writer is refused while the first lives, and let in after it was killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock

HOLD = """
import sys, time
from cpplm.core.locking import exclusive_lock
with exclusive_lock(sys.argv[1]):
    print(1, flush=True)
    time.sleep(60)
"""


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    link = tmp_path.with_name("link")
    link.symlink_to(tmp_path)
    for name in (tmp_path, link):
        with pytest.raises(UserError, match="another cpplm process"), exclusive_lock(name):
            pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with exclusive_lock(tmp_path):
        pass


def test_a_bucket_needs_none() -> None:
    with exclusive_lock("s3://bucket/run"):
        pass
