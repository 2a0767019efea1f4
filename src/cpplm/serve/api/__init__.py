"""HTTP endpoints, one file per family."""
