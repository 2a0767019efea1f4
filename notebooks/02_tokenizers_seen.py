# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tokenizers, seen
#
# A language model never sees text. It sees token ids, and how text becomes these decides how far a context
# reaches, what a step costs, and what is hard to spell. Here you see it happen to C++, in pictures. It
# takes half a minute.

# %% [markdown]
# ## Settings
#
# `cpp-32k` comes with cpplm: 32,768 tokens, trained on hundreds of megabytes of C++. With `headers` the
# small vocabularies below learn from the C++ library that came with your g++, without it from `project`
# alone. `sizes` are the vocabularies that are trained for the curve.

# %% tags=["parameters"]
published = "cpp-32k"
project = "../examples/tinylib"
headers = True
sizes = [384, 512, 1024, 2048, 4096, 8192]

# %%
import tempfile
from pathlib import Path

from cpplm.tokenizer.tokenizer import Tokenizer

work = Path(tempfile.mkdtemp(prefix="cpplm-"))
tokenizer = Tokenizer.load(published)
f"{tokenizer.vocab_size:,} tokens"

# %% [markdown]
# ## Colours
#
# Each colour is one token, an arrow a line break; hold the pointer over a token for its id and bytes. Look
# at the spaces: one stands at the beginning of the word behind it, indentation is a token by itself. And
# look at `std::vector`: to this vocabulary it is a single word.

# %%
from IPython.display import HTML, display

from cpplm.tokenizer.visualize import to_html

code = """\
#include <vector>

// The sum of the squares of all elements.
double sum_of_squares(const std::vector<double>& values) {
    double sum = 0.0;
    for (double value : values) sum += value * value;
    return sum;
}
"""
display(HTML(to_html(tokenizer, tokenizer.encode(code))))

# %% [markdown]
# ## Pieces first
#
# A regular expression cuts the text before any vocabulary is asked, and no token crosses from one piece to
# the next. So `for (` can never become one token, however often the two stand side by side. These are the
# pieces of one line.

# %%
from cpplm.tokenizer.pretokenizer import split_bytes

line = "    for (auto it = map.begin(); it != map.end(); ++it) total += it->second * 0x1F;\n"
print(*map(repr, split_bytes(tokenizer.pattern, line.encode())), sep="  ")

# %% [markdown]
# ## Merges
#
# A new vocabulary begins with the 256 bytes. Training joins the pair of neighbours that occurs most often
# to a token, again and again, until the vocabulary is full. Here several sizes are trained on the same
# text.

# %%
from cpplm.cli import corpus
from cpplm.cli import tokenizer as tokenizers
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.train import TokenizerSettings

text = str(work / "corpus")
corpus.build(CorpusSettings(text, (Path(project),), cxx_headers=headers, val_split="unit", workers=1))
trained = {}
for size in sizes:
    file = work / f"{size}.json"
    tokenizers.train(TokenizerSettings(file, text, vocab_size=size, soft_vocab_limit=True, workers=1))
    trained[size] = Tokenizer.load(file)

# %% [markdown]
# The same line in the smallest of them and in larger ones. Letters grow together to syllables, words, and
# names with their `std::`. Even the smallest has a few words of C++ whole: up to an eighth of a vocabulary
# is set aside for keywords.

# %%
example = "template<typename T> std::vector<T> sorted(std::vector<T> values);\n"
for size in sizes[::2]:
    ids = trained[size].encode(example)
    print(f"vocabulary of {trained[size].vocab_size:,}: {len(ids)} tokens")
    display(HTML(to_html(trained[size], ids)))

# %% [markdown]
# ## What a larger vocabulary buys
#
# Bytes per token say how much text fits into a context: at 4 a context of 2,048 tokens holds 8 KB. Each
# doubling of the vocabulary buys less, and costs as many more rows in the first and the last matrix of the
# model. The points are measured on documents that no vocabulary learned from.

# %%
import matplotlib.pyplot as plt

from cpplm.core.shards import ShardReader
from cpplm.tokenizer.benchmark import benchmark_tokenizer

texts = [(project, document.encode()) for project, document in ShardReader(text).texts("val")]
density = {
    each.vocab_size: benchmark_tokenizer(each, texts, threads=1).bytes_per_token for each in trained.values()
}
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(list(density), list(density.values()), "o-")
for size, value in density.items():
    axes.annotate(f"{value:.2f}", (size, value), textcoords="offset points", xytext=(0, 7), ha="center")
axes.set(xscale="log", xlabel="vocabulary", ylabel="bytes per token", ylim=(0, 1.2 * max(density.values())))
axes.set_xticks(list(density), [f"{size:,}" for size in density], minor=False)
axes.minorticks_off()
plt.show()

# %% [markdown]
# ## Two vocabularies, many kinds of text
#
# A vocabulary is good at what it was trained on. The small one knows the names of your project or of the
# library, the published one has seen many projects; both meet text here that is not C++ at all.

# %%
kinds = {
    "C++": code,
    "long names": "ConnectionPoolManagerFactory::createConnectionPoolManager(maximumConnections);\n",
    "short names": "for(i=0;i<n;++i){x+=a[i]*b[j];if(x>m)m=x;}\n",
    "numbers": "const int primes[] = {2, 3, 5, 7, 11, 1009, 104729, 1299709, 15485863};\n",
    "hexadecimal": "0xdeadbeef, 0xcafebabe, 0x8badf00d, 0x0badc0de, 0xfeedface\n",
    "deep indentation": " " * 32 + "return nullptr;\n" + " " * 28 + "}\n" + " " * 24 + "}\n",
    "English": "The quick brown fox jumps over the lazy dog, and nobody knows why it bothers to.\n",
    "German": "// Größe und Fläche müssen übereinstimmen, sonst schlägt die Prüfung fehl.\n",
    "Japanese": "// 面積と周囲の長さを計算する関数です。\n",
}
small = trained[sizes[-1]]
names = {f"{small.vocab_size:,} tokens, trained here": small, published: tokenizer}
figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
for offset, (name, each) in zip((-0.2, 0.2), names.items(), strict=True):
    values = [len(sample.encode()) / len(each.encode(sample)) for sample in kinds.values()]
    places = [number + offset for number in range(len(kinds))]
    axes.bar_label(axes.barh(places, values, height=0.38, label=name), fmt="%.1f", padding=3)
axes.set_yticks(range(len(kinds)), list(kinds))
axes.invert_yaxis()
axes.margins(x=0.1)
axes.set(xlabel="bytes per token (more is shorter)")
axes.legend()
plt.show()

# %% [markdown]
# Japanese comes out worst: its characters take three bytes each, and hardly a merge was learned for them.
# Replace `kinds` by text of your own. A kind of text far to the left takes more of the context, and more of
# your time.

# %% [markdown]
# ## Nothing is lost
#
# Every byte has a token, so every file comes back exactly as it was: text that is no valid UTF-8, binary
# data, Windows line ends. Nothing is normalised. The numbers are bytes and tokens.

# %%
import random

awkward = {
    "UTF-8": "naïve 面積 \N{ROCKET}".encode(),
    "Latin-1": "Größe".encode("latin-1"),
    "Windows": b"int x;\r\n\tint y;\r\n",
    "random bytes": random.Random(0).randbytes(200),
}
for name, data in awkward.items():
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    print(f"{name:14} {len(data):4} bytes  {len(ids):4} tokens")

# %% [markdown]
# A part of a character can be a token: this vocabulary spells the rocket in several, which alone are no
# text, so they are shown as bytes.

# %%
display(HTML(to_html(tokenizer, tokenizer.encode("go \N{ROCKET}"))))

# %% [markdown]
# ## Special tokens
#
# Ids 0 to 63 are no text: they mark where a document begins, what is missing, who speaks. They are grey
# below. Their names inside your code are ordinary characters, so no file can pretend to end a document;
# only a program that asks for one gets it.

# %%
from cpplm.tokenizer.special_tokens import NAMED_TOKENS

print(*NAMED_TOKENS)
display(
    HTML(to_html(tokenizer, tokenizer.encode("// <BOS> is no token here\n", prepend="<BOS>", append="<EOS>")))
)

# %% [markdown]
# ## Prompts that end inside a token
#
# An editor asks for a completion behind `std::vec`, but in training `std::vector` was one token. The prompt
# as it stands would be a sight that the model never had. So the last pieces are taken back, and the first
# tokens written have to spell them: that is token healing.

# %%
from cpplm.tokenizer.healing import heal

healed = heal(tokenizer, "int main() {\n    std::vec")
display(HTML(to_html(tokenizer, healed.ids)))
print("taken back:", healed.removed)

# %% [markdown]
# ## Filling in the middle
#
# A model writes forwards only. To fill a hole it is shown the text before and the text behind, each with a
# mark, and then writes the middle. This is what an editor sends for a cursor between the two parts:

# %%
from cpplm.dataloader.fim import FimEncoder, FimSettings, invert, render_fim_prompt

prefix, suffix = code.split("    double sum = 0.0;\n")
display(HTML(to_html(tokenizer, render_fim_prompt(tokenizer, prefix, suffix, spm=False))))

# %% [markdown]
# And this is how it learns to: in training, holes are cut into documents and the missing part moves to the
# end, here behind `<FIM_MIDDLE>`. The other order, suffix first, comes up as often (`fim_spm_rate`). Change
# `fim_seed` for another hole.

# %%
from cpplm.dataloader.encoding import RawDocument

for order, spm_rate in {"prefix first": 0.0, "suffix first": 1.0}.items():
    settings = FimSettings(fim_rate=1.0, syntax_fim_rate=0.0, fim_spm_rate=spm_rate, fim_seed=1)
    encoder = FimEncoder(published, tokenizer.hash, settings, seq_len=512)
    ((piece, *_),) = encoder.encode([RawDocument(code, key=(0, 0, 0))])
    assert invert(piece, tokenizer) == code.encode()  # put together again it is the document
    print(order)
    display(HTML(to_html(tokenizer, piece.tolist())))

# %% [markdown]
# ## What to try next
#
# - Put a file of yours in the place of `code`, and look for names that fall apart. A tokenizer from your
#   own code has them whole: `cpplm tokenizer train CORPUS --out tokenizer.json`, and docs/tokenizer.md.
# - `published = "cpp-32k-dense"`: indentation joins the line break before it. Fewer tokens, but our models
#   with it were worse; the log has the figures.
# - A line of yours in colours, in the terminal: `cpplm tokenizer show cpp-32k --file main.cpp`.
