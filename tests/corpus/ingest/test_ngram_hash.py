from cpplm.corpus.ingest.ngram_hash import hash_words, ngram_hashes, split_words


def test_words_are_runs_of_letters_digits_and_underscores():
    text = "int f_1(std::vector<é> x){return 0x1F;}".encode()
    expected = ["int", "f_1", "std", "vector", "é", "x", "return", "0x1F"]
    assert [word.decode() for word in split_words(text)] == expected
    assert split_words(b"") == split_words(b" ;") == []


def hashes(text: str, length: int) -> list[int]:
    return ngram_hashes(hash_words(split_words(text.encode())), length).tolist()


def test_runs_depend_on_order_and_length():
    assert len(hashes("a b c", 3)) == 1
    assert hashes("a b c", 3) != hashes("a c b", 3)
    assert len(hashes("a b c", 2)) == 2
    assert hashes("a b c", 4) == []
    assert hashes("x (a, b)\nc y", 3)[1:2] == hashes("a b c", 3)


def test_hashes_stay_the_same():
    """They are stored beside corpora: others need another version in `fingerprints`."""
    assert hashes("int main", 2) == [9034288974327897552]
