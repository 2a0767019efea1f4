"""cpplm: from C++ projects to C++ code models.

Data flows one way: corpus, tokenizer, batches, model, train, evaluate, generate. Importing this package
imports none of them, so that it stays fast and needs no extra.
"""

__version__ = "0.1.0"
