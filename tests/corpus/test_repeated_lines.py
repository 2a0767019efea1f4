"""Lines that many documents have are counted once per document."""

from cpplm.corpus.repeated_lines import DOCUMENTS, RepeatedLines


def test_lines_of_many_documents_are_shared():
    """Half of the bytes stand in lines of every document; a line counts once in each, short ones never."""
    lines = RepeatedLines()
    common = [f"#define COMMON_{number:04d} 1\n" for number in range(2000)]
    for document in range(DOCUMENTS):
        own = [f"#define OWN{document}_{number:05d} 1\n" for number in range(2000)]
        lines.add("".join([*common, *own, *common, "}\n" * 100]))
    shared, counted = lines.shared_and_counted_bytes()
    assert 0.45 < shared / counted < 0.55


def test_too_few_documents_share_nothing():
    lines = RepeatedLines()
    for _ in range(DOCUMENTS - 1):
        lines.add("".join(f"int value_{number} = 0;\n" for number in range(1000)))
    shared, counted = lines.shared_and_counted_bytes()
    assert shared == 0 < counted
