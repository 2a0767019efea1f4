"""TPUs in the cloud: what they cost, how training on them is kept going."""
