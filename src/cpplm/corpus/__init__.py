"""C++ projects to ordered training documents in parquet shards."""
