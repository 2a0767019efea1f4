"""Projects on disk or in JSON lines to the source files worth learning from."""
