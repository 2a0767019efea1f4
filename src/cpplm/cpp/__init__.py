"""C++ source text to top-level items and syntax spans; knows no project."""
