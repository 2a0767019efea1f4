"""Every switch reaches the model; what would do nothing is refused."""

import pytest

from cpplm.core.errors import UserError
from cpplm.core.settings import from_command_line
from cpplm.model.config import EngramConfig, ModelConfig
from cpplm.model.settings import ArchitectureSettings, KernelSettings


def config(*flags: str, depth: int = 8) -> ModelConfig:
    settings = from_command_line(ArchitectureSettings, list(flags), program="cpplm train", description="")
    return settings.config(depth, vocab_size=256, max_seq_len=512)


def test_nothing_said_is_the_preset() -> None:
    shape = {"vocab_size": 256, "max_seq_len": 512}
    assert config() == ModelConfig.from_depth(8, **shape)
    assert config("--preset", "seed") == ModelConfig.seed(8, **shape)
    assert config("--preset", "nanochat") == ModelConfig.nanochat(8, **shape)
    assert config("--preset", "llama") == ModelConfig.llama(8, **shape)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--rope_base", "500"], "rope_base", 500.0),
        (["--qk_scale", "1.5"], "qk_scale", 1.5),
        (["--mlp", "swiglu"], "mlp", "swiglu"),
        (["--short_window", "quarter"], "short_window", "quarter"),
        (["--value_embeddings", "on"], "value_embeddings", True),
        (["--smear", "on"], "smear", True),
        (["--induction", "on"], "induction", True),
        (["--backout", "on"], "backout", True),
    ],
)
def test_single_switches(flags: list[str], field: str, value: object) -> None:
    assert getattr(config("--preset", "seed", *flags), field) == value
    if value is True:
        assert not getattr(config("--preset", "nanochat", flags[0], "off"), field)


def test_engram() -> None:
    memory = config("--engram", "memory").engram
    assert memory == EngramConfig(layers=(1, 4), num_heads=8, head_dim=32, bottleneck_dim=128)
    flags = "--engram_layers 0 2 --engram_ngram_orders 2 4 --engram_heads 2 --engram_head_dim 8"
    other = config("--engram", "memory", *flags.split(), "--engram_table_size", "99").engram
    assert (other.layers, other.ngram_orders, other.num_heads) == ((0, 2), (2, 4), 2)
    assert (other.head_dim, other.table_size) == (8, 99)
    local = config("--engram", "local", "--engram_bottleneck_dim", "17").engram
    assert (local.kind, local.ngram_orders, local.bottleneck_dim) == ("local", (2, 3, 4), 17)
    assert config("--engram", "off").engram is None
    assert config("--engram", "memory", depth=1).engram.layers == (0,)


def test_streams_further_tokens_and_sparse_attention() -> None:
    streams = config("--mhc", "--mhc_num_branches", "3", "--mhc_sinkhorn_iters", "7").hyper_connections
    assert (streams.num_streams, streams.sinkhorn_iterations) == (3, 7)
    assert config("--mtp", "--mtp_depth", "2").mtp.depth == 2
    flags = "--dsa_start_layer 3 --dsa_top_k_ratio 0.25 --dsa_local_window 9 --dsa_indexer_heads 2"
    sparse = config("--dsa", *flags.split(), "--dsa_indexer_dim", "6").dsa
    assert (sparse.start_layer, sparse.top_k, sparse.local_window) == (3, 128, 9)
    assert (sparse.indexer_heads, sparse.indexer_dim) == (2, 6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mhc_num_branches", "2"], "does nothing without --mhc"),
        (["--mtp_lambda", "0.1"], "does nothing without --mtp"),
        (["--dsa_top_k_ratio", "0.1"], "does nothing without --dsa"),
        (["--preset", "seed", "--engram_heads", "2"], "does nothing without --engram memory"),
        (["--engram", "off", "--engram_layers", "1"], "does nothing without --engram memory"),
        (["--engram", "memory", "--engram_bottleneck_dim", "8"], "--engram local"),
        (["--engram", "local", "--engram_table_size", "8"], "--engram memory"),
        (["--engram", "memory", "--engram_layers", "8"], "layers 0 to 7"),
        (["--engram", "memory", "--engram_ngram_orders", "1"], "lengths from 2"),
        (["--dsa", "--dsa_start_layer", "8"], "begins at layer 8"),
        (["--dsa", "--dsa_top_k_ratio", "0.01"], "leaves no choice"),
        (["--dsa", "--dsa_top_k_ratio", "1.5"], "share from 0 to 1"),
        (["--mhc", "--mhc_num_branches", "1"], "at least 2"),
        (["--mtp", "--mtp_lambda", "-1"], "number from 0 up"),
        (["--rope_base", "0"], "positive number"),
        (["--preset", "llama", "--qk_scale", "1.2"], "Leave out --qk_scale"),
    ],
)
def test_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(*flags)


def test_schedules() -> None:
    settings = ArchitectureSettings(mtp=True, dsa=True, dsa_warmup_ratio=0.2)
    assert [settings.multi_token_weight(progress) for progress in (0.0, 0.6, 0.7)] == [0.3, 0.3, 0.1]
    assert [settings.dense_attention(progress) for progress in (0.0, 0.19, 0.2)] == [True, True, False]
    assert not ArchitectureSettings().dense_attention(0.0)


def test_recipe_of_eight_bits_alone() -> None:
    with pytest.raises(UserError, match="without --fp8"):
        KernelSettings(fp8_recipe="rowwise")
