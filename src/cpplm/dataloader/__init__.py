"""Documents to packed batches of token ids, with exact resume."""
