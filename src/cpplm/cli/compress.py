"""`cpplm compress`."""

from __future__ import annotations

from dataclasses import asdict

from cpplm.cli.report import Report
from cpplm.cli.train import summary_report
from cpplm.compress.compare import compare as compare_models
from cpplm.compress.compare import page_values, table
from cpplm.compress.hf import quantize_hf
from cpplm.compress.hf_compare import compare_hf
from cpplm.compress.hf_qat import train_hf_quantized
from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.cache import KDCache
from cpplm.compress.kd.settings import CacheBuildSettings, CacheSettings
from cpplm.compress.kd.stats import cache_figures
from cpplm.compress.layer_checks import check_run
from cpplm.compress.layer_checks import table as check_table
from cpplm.compress.qat import train_quantized
from cpplm.compress.quantize import quantize_run
from cpplm.compress.settings import CheckSettings, CompareSettings, QatSettings, QuantizeSettings
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, is_hf_folder
from cpplm.core.text import pluralize
from cpplm.train.report.html import render_page


def quantize(settings: QuantizeSettings) -> Report:
    """Round, or pack what training has rounded."""
    if is_hf_folder(settings.run):
        size = quantize_hf(settings)
        return Report(f"{size / 1e6:,.2f} MB in {settings.out}", {"path": str(settings.out), "bytes": size})
    packed = quantize_run(settings)
    return Report(
        f"{packed.size / 1e6:,.2f} MB in {packed.path()}", {"path": packed.path(), "bytes": packed.size}
    )


def qat(settings: QatSettings) -> Report:
    """Train, or go on."""
    is_hf = is_hf_folder(settings.run)
    return summary_report((train_hf_quantized if is_hf else train_quantized)(settings))


def check(settings: CheckSettings) -> Report:
    """Show the layers."""
    checks = check_run(settings)
    return Report(check_table(checks), {"layers": [asdict(each) for each in checks]})


def compare(settings: CompareSettings) -> Report:
    """Measure what was lost."""
    results = (compare_hf if is_hf_folder(settings.teacher) else compare_models)(settings)
    if settings.page is not None:
        html = render_page("compression_page.html.jinja", page_values(results, settings))
        Storage(settings.page.parent, create=True).write(settings.page.name, html.encode())
    return Report(table(results), {"models": page_values(results, settings)["models"]})


def cache_build(settings: CacheBuildSettings) -> Report:
    """Run a teacher over a corpus."""
    manifest = build_cache(settings)
    size = sum(shard.bytes for shard in manifest.shards)
    return Report(
        f"{manifest.tokens:,} tokens in {settings.out}: {size / 1e6:,.1f} MB, "
        f"{size / manifest.tokens:.1f} bytes per token",
        {"tokens": manifest.tokens, "bytes": size, "bytes_per_token": size / manifest.tokens},
    )


def cache_verify(settings: CacheSettings) -> Report:
    """Compare every shard with its hash; UserError names those that are damaged."""
    cache = KDCache.open(settings.cache)
    if problems := cache.verify():
        raise UserError("; ".join(problems))
    shards = len(cache.manifest.shards)
    return Report(f"{pluralize(shards, 'shard')} verified", {"shards": shards})


def cache_stat(settings: CacheSettings) -> Report:
    """Figures of a cache."""
    figures = cache_figures(KDCache.open(settings.cache))
    return Report(
        f"{figures['tokens']:,} tokens in {figures['rows']:,} rows; {figures['counted_tokens']:,} count\n"
        f"{figures['bytes'] / 1e6:,.1f} MB, {figures['bytes_per_token']:.1f} bytes per token\n"
        f"top {figures['topk']}: {figures['topk_mass']:.2%} of the teacher's mass, entropy "
        f"{figures['topk_entropy']:.3f} nats, {figures['target_in_topk']:.2%} of the targets\n"
        f"{pluralize(figures['negatives'], 'negative')} per token",
        figures,
    )
