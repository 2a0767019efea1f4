"""Source files to units, items in an order, and documents within a token budget."""
