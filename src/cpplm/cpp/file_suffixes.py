"""File name suffixes of C and C++, by what a file holds."""

from __future__ import annotations

from pathlib import PurePosixPath

# Interface units of modules, as Clang and MSVC call them.
MODULE_SUFFIXES = frozenset({".cppm", ".ccm", ".cxxm", ".c++m", ".ixx"})
SOURCE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cxx", ".c++", ".cu"}) | MODULE_SUFFIXES
PART_SUFFIXES = frozenset({".icc", ".inl", ".ipp", ".tcc", ".tpp", ".txx"})  # the second half of a header
HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh"})
FRAGMENT_SUFFIXES = frozenset({".inc", ".def"})  # included in the middle of other files


def is_source(name: str) -> bool:
    """True if a file is compiled by itself, judged by its name."""
    return PurePosixPath(name).suffix.lower() in SOURCE_SUFFIXES
