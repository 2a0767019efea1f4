"""A folder for checkpoints."""

from pathlib import Path

import pytest

from cpplm.core.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "checkpoints", create=True)
