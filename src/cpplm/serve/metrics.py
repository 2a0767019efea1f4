"""Figures of a running server for Prometheus. Each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # a server without a model, of runs, needs no torch
    from cpplm.serve.async_engine import AsyncEngine

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Counters that the server keeps, and gauges that are read when somebody asks."""

    def __init__(self, engines: Sequence[AsyncEngine] = ()) -> None:
        """Nothing counted yet; figures of several engines are sums."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "cpplm_http_requests", "Answers, by path and status", ("path", "status"), registry=self.registry
        )
        self.active = Gauge("cpplm_http_requests_active", "Requests under way", registry=self.registry)
        self.seconds = Histogram(
            "cpplm_http_request_seconds", "From a request's head to the end of its answer", ("path",),
            buckets=_REQUEST_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.prompt_tokens = Counter("cpplm_prompt_tokens", "Tokens of prompts", registry=self.registry)
        self.time_to_first_token = Histogram(
            "cpplm_time_to_first_token_seconds", "Until the first token of a request",
            buckets=_REQUEST_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.inter_token_latency = Histogram(
            "cpplm_inter_token_latency_seconds", "Between two tokens of a request", buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.cancelled = Counter(
            "cpplm_requests_cancelled", "Requests whose clients went away", registry=self.registry
        )
        self.registry.register(_GeneratedTokens(engines))
        self._look_up(engines)

    def _look_up(self, engines: Sequence[AsyncEngine]) -> None:
        """Numbers that the thread writes and this reads: they may be a step old, never half-written."""
        looks: tuple[tuple[str, str, Callable[[AsyncEngine], float]], ...] = (
            ("cpplm_num_requests_waiting", "Requests of which nothing was written yet",
             lambda engine: engine.num_waiting),
            ("cpplm_num_samples_running", "Completions being written",
             lambda engine: engine.scheduler.num_running),
            ("cpplm_cache_blocks_used", "Blocks of the cache in use",
             lambda engine: engine.scheduler.cache.num_used_blocks),
            ("cpplm_cache_blocks_reusable", "Blocks kept for requests that begin alike",
             lambda engine: engine.scheduler.cache.num_cached_blocks),
            ("cpplm_cache_bytes", "Memory of the cache", lambda engine: engine.scheduler.cache.bytes),
            ("cpplm_draft_tokens", "Tokens drafted", lambda engine: engine.scheduler.num_drafted),
            ("cpplm_accepted_tokens", "Drafted tokens that were written",
             lambda engine: engine.scheduler.num_accepted),
            ("cpplm_model_failures", "Steps of the model that failed", lambda engine: engine.num_failures),
        )  # fmt: skip
        for name, meaning, look in looks:
            gauge = Gauge(name, meaning, registry=self.registry)
            gauge.set_function(partial(lambda look: float(sum(map(look, engines))), look))
        up = Gauge("cpplm_model_up", "Whether the model's thread runs", registry=self.registry)
        up.set_function(lambda: float(all(engine.alive for engine in engines)))

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self.registry)


class _GeneratedTokens(Collector):
    """A counter that the model's thread keeps: nothing is lost that nobody waits for."""

    def __init__(self, engines: Sequence[AsyncEngine]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The one counter."""
        count = sum(engine.num_generated for engine in self._engines)
        yield CounterMetricFamily("cpplm_generation_tokens", "Tokens generated", value=count)
