"""Bits per byte and C++ problems that are compiled and run."""
