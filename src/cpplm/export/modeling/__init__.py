"""Files that go into an export: modeling code for `transformers`, which needs nothing of cpplm."""
