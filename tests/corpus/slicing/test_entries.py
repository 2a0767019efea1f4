"""Entries of a name by the files that a unit reads."""

from cpplm.corpus.slicing.entries import EntriesByName


def test_entries_come_file_by_file_whichever_was_read_first() -> None:
    entries: EntriesByName[str] = EntriesByName()
    for file, entry in ((2, "first"), (1, "second"), (3, "elsewhere"), (2, "third")):
        entries.add(b"f", file, entry)
    entries.add(b"g", 4, "other")
    for files in ([1, 2], [2, 9, 1, 8]):
        assert entries.find(b"f", dict.fromkeys(files)) == ["second", "first", "third"]
    assert entries.find(b"f", {}) == entries.find(b"h", {1: None}) == []
    assert b"f" in entries and b"h" not in entries and entries.keys() == {b"f", b"g"}
