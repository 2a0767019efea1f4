"""Tools that a model calls while it writes: how a call looks, what may be called, how writing goes on."""
