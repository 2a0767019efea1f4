"""Jobs beside a caller: their results, and their errors."""

from typing import Any

import pytest

from cpplm.evaluate.models.async_jobs import run_jobs
from cpplm.evaluate.models.server import ApiClient


def test_an_error_of_a_job_is_the_callers() -> None:
    server = ApiClient("http://127.0.0.1/v1")

    async def work(_: Any, job: int) -> int:
        if job == 3:
            raise ZeroDivisionError("job 3")
        return job

    with pytest.raises(ZeroDivisionError, match="job 3"):
        list(run_jobs(range(10), work, server.connection, at_once=2))
    assert sorted(run_jobs(range(3), work, server.connection, at_once=2)) == [(0, 0), (1, 1), (2, 2)]
    assert list(run_jobs([], work, server.connection, at_once=2)) == []
