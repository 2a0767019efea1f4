"""The page stands alone, shows the run, and escapes what a model wrote."""

import json
import re
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.train.page import write_page
from cpplm.train.pretrain import pretrain
from tests.train.test_pretrain import settings  # noqa: F401  (a fixture)


def test_page_of_a_real_run(settings) -> None:  # noqa: F811
    pretrain(settings)
    evil = "<script>alert(1)</script>"
    (settings.out / "samples.json").write_text(
        json.dumps({"step": 8, "samples": [{"prompt": "int main", "completion": evil, "reason": "length"}]})
    )
    html = write_page(settings.out).read_text()
    assert evil not in html
    assert "&lt;script&gt;alert(1)" in html
    assert html.count("<svg") == 4
    assert "validation bits per byte" in html
    assert "<code>matrix_lr</code></td><td>0.5" in html
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert not links  # nothing is loaded from anywhere
    assert not re.search(r"url\((?!#)|@import", html)


def test_page_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        write_page(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(UserError, match="no training session"):
        write_page(tmp_path)
