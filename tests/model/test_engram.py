"""Addresses of n-grams, canonical ids, what is looked up."""

from cpplm.model.config import EngramConfig
from cpplm.model.engram import EngramMemory
from cpplm.model.ngram_hash import hash_multipliers, table_rows
from tests.model.features import CONFIGS, random_ids, random_model

CONFIG = CONFIGS["memory"]


def memory_of_first_layer() -> EngramMemory:
    memory = random_model(CONFIG).blocks[0].engram
    assert isinstance(memory, EngramMemory)
    return memory


def test_tables_have_distinct_prime_sizes() -> None:
    config = EngramConfig(layers=(1, 5), ngram_orders=(2, 3, 4), num_heads=3, table_size=1000)
    sizes = table_rows(config, 1) + table_rows(config, 5)
    assert len(set(sizes)) == 18
    assert min(sizes) == 1009  # the first prime from 1000 up
    assert all(size % divisor for size in sizes for divisor in range(2, 40))


def test_addresses_follow_the_definition() -> None:
    """With Python's integers: products, exclusive or, remainder, for each order its own last ids."""
    memory, ids = memory_of_first_layer(), random_ids(1, 12)
    rows, multipliers = table_rows(memory.engram, 0), hash_multipliers(memory.engram, 0)
    padded = [0, 0, *ids[0].tolist()]
    got = memory.addresses(ids, None)[0].tolist()
    for t in range(12):
        for table in range(4):
            order = (2, 2, 3, 3)[table]
            hashed = 0
            for back in range(order):
                hashed ^= (padded[t + 2 - back] + 1) * multipliers[table][back] % 2**32
            hashed ^= hashed >> 15
            assert got[t][table] == hashed % rows[table] + sum(rows[:table])
    assert max(max(row) for row in got) < memory.table.num_embeddings


def test_gradients_of_tables_are_sparse() -> None:
    model, ids = random_model(CONFIG), random_ids(1, 4)
    model.training_losses(ids, ids.roll(-1, dims=1)).total.backward()
    gradient = model.blocks[0].engram.table.weight.grad
    assert gradient.is_sparse
    assert gradient.coalesce().indices().numel() <= 4 * 4
