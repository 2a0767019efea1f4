"""Small C++ texts and tokenizers made of them; imports nothing heavy, for worker processes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cpplm.tokenizer.pretoken_counts import count_words
from cpplm.tokenizer.pretokenizer import PATTERNS, PretokenizerName
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import train_vocabulary


def cpp_document(number: int) -> str:
    """A small C++ file, different for each number, of very different lengths."""
    functions = "\n".join(
        f"int shift_{number}_{i}(int value) {{\n    return (value << {i % 7}) + {number * i};\n}}\n"
        for i in range(1 + number % 5 * 4)
    )
    return f"#include <vector>\n\nnamespace part_{number} {{\n\n{functions}\n}}  // namespace part_{number}\n"


@dataclass(frozen=True)
class TextBatch:
    """Texts of one project, to count words of."""

    texts_: tuple[bytes, ...]
    project: str = "p"

    @property
    def size(self) -> int:
        return sum(map(len, self.texts_))

    def texts(self) -> Iterator[tuple[str, bytes]]:
        return ((self.project, text) for text in self.texts_)


def make_tokenizer(texts: Iterable[str], vocab_size: int, pieces: PretokenizerName = "lines") -> Tokenizer:
    """Trained on these texts alone."""
    batch = TextBatch(tuple(text.encode() for text in texts))
    words = count_words([batch], PATTERNS[pieces], workers=1)
    return Tokenizer(PATTERNS[pieces], train_vocabulary(words, vocab_size))
