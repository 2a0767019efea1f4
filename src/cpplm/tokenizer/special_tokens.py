"""Special tokens and their fixed ids.

Ids 0-19 mark documents, fill-in-the-middle, code, thoughts, tools and diffs; 20-27 mark chat turns; 28-63 are
reserved, so that a later version can name one without moving any other id. They never come out of encoding
ordinary text, whatever the text contains: only `encode_special` gives them.
"""

from __future__ import annotations

# UNK is reserved and never emitted: every byte has a token.
_DOCUMENT = """
PAD UNK BOS EOS FIM_PREFIX FIM_MIDDLE FIM_SUFFIX CODE_START CODE_END THOUGHT_START THOUGHT_END QUERY_TOOL
INDEX DEBUG_CONTEXT FILE_SEP DIFF_START DIFF_END COMMENT_START COMMENT_END TOOL_RESULT
"""
DOCUMENT_TOKENS = tuple(f"<{name}>" for name in _DOCUMENT.split())
CHAT_TOKENS = tuple(
    f"<|{who}_{edge}|>" for who in ("user", "assistant", "python", "output") for edge in ("start", "end")
)
NUM_SPECIAL = 64
NAMED_TOKENS = (*DOCUMENT_TOKENS, *CHAT_TOKENS)
SPECIAL_TOKENS = (*NAMED_TOKENS, *(f"<|reserved_{id_}|>" for id_ in range(len(NAMED_TOKENS), NUM_SPECIAL)))
SPECIAL_IDS = {name: number for number, name in enumerate(SPECIAL_TOKENS)}
# nanochat writes specials in lower case between bars: <|bos|> is <BOS>, <|code_start|> is <CODE_START>.
ALIASES = {f"<|{name.strip('<>').lower()}|>": name for name in DOCUMENT_TOKENS} | {"<|endoftext|>": "<BOS>"}

PAD, BOS, EOS = (SPECIAL_IDS[name] for name in ("<PAD>", "<BOS>", "<EOS>"))
FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX = (
    SPECIAL_IDS[name] for name in ("<FIM_PREFIX>", "<FIM_MIDDLE>", "<FIM_SUFFIX>")
)
IGNORE_INDEX = -1  # no token: stands where a target does not count
