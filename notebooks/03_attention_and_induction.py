# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention and induction
#
# A token's guess about the next one is made of what stood before. Attention is how it looks back: each head
# of each layer spreads a weight of 1 over all earlier tokens. Induction is a short cut that our models have
# besides: they are told which token followed the last time that the same tokens stood there.

# %% [markdown]
# ## Settings
#
# Two small models are trained, one with induction and one without, for about a minute each on a quiet
# laptop. To look into a model of yours, name its run folder as `run`; heads become clearer the longer a
# model was trained, so `make demo` and `run = "../runs/demo/run"` are worth it.

# %% tags=["parameters"]
run = ""  # a run of cpplm train; empty: the model trained here
project = "../examples/tinylib"
headers = True  # learn from the C++ library of g++, too
steps = 200

# %%
import tempfile
from pathlib import Path

from cpplm.cli import corpus
from cpplm.cli import tokenizer as tokenizers
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.train import TokenizerSettings

work = Path(tempfile.mkdtemp(prefix="cpplm-"))
text, vocabulary = str(work / "corpus"), work / "tokenizer.json"
corpus.build(CorpusSettings(text, (Path(project),), cxx_headers=headers, val_split="unit", workers=1))
trained = TokenizerSettings(vocabulary, text, vocab_size=2048, soft_vocab_limit=True, workers=1)
print(tokenizers.train(trained).text)

# %% [markdown]
# The two runs differ in one setting of the architecture. `window_pattern="L"` lets every layer see the
# whole context, so that no part of the pictures below is empty by design.

# %%
from cpplm.cli.train import train
from cpplm.model.settings import ArchitectureSettings
from cpplm.optim.schedules import LearningRates
from cpplm.train.settings import TrainSettings

for induction in ("on", "off"):
    settings = TrainSettings(
        (text,), vocabulary, work / f"induction_{induction}",
        architecture=ArchitectureSettings(induction=induction),
        depth=2, head_dim=32, max_seq_len=256, window_pattern="L",
        device_batch_size=8, total_batch_size=2048, num_iterations=steps,
        rates=LearningRates(matrix_lr=0.2, embedding_lr=3.0, unembedding_lr=0.04),
        eval_every=100, eval_tokens=16_384, sample_every=-1, no_compile=True,
    )  # fmt: skip
    print(induction, "-", train(settings).text)

# %%
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.generate.settings import ModelSource

models = {
    name: CheckpointModel.load(ModelSource(str(work / f"induction_{name}"), precision="fp32"))
    for name in ("on", "off")
}
looked_at = CheckpointModel.load(ModelSource(run, precision="fp32")) if run else models["on"]
model, tokenizer = looked_at.engine.model, looked_at.engine.tokenizer

# %% [markdown]
# ## The text
#
# A short class in the style of the library. Some of it comes twice, such as `_M_width`: that is what to
# look for.

# %%
from IPython.display import HTML, display

from cpplm.tokenizer.visualize import to_html

code = """\
template<typename _Tp>
  struct grid
  {
    size_t _M_width;
    size_t _M_height;

    size_t
    area() const
    { return _M_width * _M_height; }
  };
"""
ids = tokenizer.encode(code, prepend="<BOS>")
labels = [tokenizer.decode([id_]).replace("\n", "↵").replace(" ", "·") for id_ in ids]
display(HTML(to_html(tokenizer, ids)))

# %% [markdown]
# ## All heads
#
# Each square is a head. A row is a token that looks, a column a token that is looked at; above the diagonal
# lies the future, which nobody sees. Bright is much weight. Look for columns (a token that many look at),
# for a line along the diagonal (a head that looks just before itself), and for lines beside it (a head that
# repeats what stood there).

# %%
import matplotlib.pyplot as plt

from cpplm.model.attention_weights import attention_weights

weights = attention_weights(model, ids)
heads = weights[0].shape[0]
figure, grid = plt.subplots(
    len(weights), heads, figsize=(2.4 * heads, 2.6 * len(weights)), layout="constrained", squeeze=False
)
for layer, row in enumerate(grid):
    for head, axes in enumerate(row):
        axes.imshow(weights[layer][head].sqrt(), vmin=0, vmax=1)
        axes.set(title=f"layer {layer}, head {head}", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# Young models look around; sharp heads take thousands of steps. Square roots are drawn, so that small
# weights show, too.

# %% [markdown]
# ## One head, word by word
#
# The same for one head, with the tokens written on. Set `layer` and `head` to one that caught your eye
# above. Follow a row from the left: on which tokens does it rest?

# %%
layer, head = 0, 1
figure, axes = plt.subplots(figsize=(9, 9), layout="constrained")
axes.imshow(weights[layer][head].sqrt(), vmin=0, vmax=1)
axes.set_xticks(range(len(ids)), labels, rotation=90, fontsize=7, family="monospace")
axes.set_yticks(range(len(ids)), labels, fontsize=7, family="monospace")
axes.set(xlabel="looked at", ylabel="looks", title=f"layer {layer}, head {head}")
plt.show()

# %% [markdown]
# ## Where one token looks
#
# Now a single row, drawn over the text: what the last `_M_` is made of, by each head of the last layer. It
# has to be continued by a name that stands further up. Do any heads look there? In a longer run some will.

# %%
from cpplm.tokenizer.visualize import to_shaded_html

last = len(labels) - 1 - labels[::-1].index("_M_") if "_M_" in labels else len(labels) - 3
for head, of_head in enumerate(weights[-1]):
    print(f"layer {len(weights) - 1}, head {head}, from token {last}, {labels[last]!r}")
    row = of_head[last, : last + 1]
    display(HTML(to_shaded_html(tokenizer, ids[: last + 1], row.tolist(), most=float(row.max()))))

# %% [markdown]
# ## What the heads have in common
#
# Four figures for each head: how much of its weight goes to the token itself, the one before, the first
# one, and to the place behind the last match, which induction would choose. Grey is what a head that
# spreads evenly would give. A bar far above grey in the last panel is a head that looks where induction
# would, found by training alone.

# %%
import torch

from cpplm.model.induction import match_places

places, lengths = (each[0] for each in match_places(torch.tensor([ids])))
at = torch.arange(1, len(ids))
matched = at[lengths[1:] > 0]
targets = {
    "itself": (at, at),
    "the one before": (at, at - 1),
    "the first": (at, torch.zeros_like(at)),
    "behind the last match": (matched, places[matched]),
}
names = [f"{layer}.{head}" for layer in range(len(weights)) for head in range(heads)]
figure, row = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained", sharey=True)
for axes, (name, (queries, keys)) in zip(row, targets.items(), strict=True):
    axes.bar(names, [float(of_head[queries, keys].mean()) for each in weights for of_head in each])
    axes.axhline(float((1 / (queries + 1)).mean()), color="grey")
    axes.set_title(name)
row[0].set(ylabel="mean weight")
figure.supxlabel("layer.head")
plt.show()

# %% [markdown]
# ## Where induction looks
#
# Induction needs no training to find its place: it compares ids. For each token it takes the longest run of
# tokens (8, 4, 2 or 1) that ends there and stood somewhere before, and hands on the token that followed. An
# arc goes from what followed then to the token that is guessed now. Green guesses are right, grey ones
# wrong; thick ones had a longer run.

# %%
import numpy as np

figure, axes = plt.subplots(figsize=(13, 4), layout="constrained")
right = 0
for end in range(len(ids) - 1):
    if lengths[end]:
        source, guessed = int(places[end]), end + 1
        is_right = ids[source] == ids[guessed]
        right += is_right
        angle = np.linspace(0, np.pi, 40)
        middle, radius = (source + guessed) / 2, (guessed - source) / 2
        axes.plot(
            middle + radius * np.cos(angle), radius * np.sin(angle),
            color="tab:green" if is_right else "0.75", linewidth=0.7 * int(lengths[end]), zorder=1 + is_right,
        )  # fmt: skip
axes.set_xticks(range(len(ids)), labels, rotation=90, fontsize=8, family="monospace")
axes.set(yticks=[], xlim=(-1, len(ids)))
axes.spines[["left", "right", "top"]].set_visible(False)
axes.set_title(f"{int((lengths > 0).sum())} matches, of which {right} guess right")
plt.show()

# %% [markdown]
# Guesses are right inside names that come again, and wrong where these end: behind `width` stood a
# semicolon, now comes a star. So the model is told how long the match was and learns how much to believe
# each length. These are the factors that it has found so far; all began at 1:

# %%
from cpplm.model.config import INDUCTION_LENGTHS

if model.induction is not None:
    for length, scale in zip(INDUCTION_LENGTHS, model.induction.scales.tolist(), strict=True):
        print(f"run of {length}: {scale:5.2f}")

# %% [markdown]
# ## What it brings
#
# The usual test of induction: the same text twice. Whoever can look up what followed needs hardly a bit for
# the second copy. Compare the two models. They had the same text and the same number of steps.

# %%
copies = {}
for name, each in models.items():
    (scored,) = each.score([code + code])
    first = scored.ends <= len(code)
    copies[name] = [scored.bits[part].sum() / len(code) for part in (first, ~first)]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for offset, (name, values) in zip((-0.2, 0.2), copies.items(), strict=True):
    bars = axes.bar(np.arange(2) + offset, values, width=0.38, label=f"induction {name}")
    axes.bar_label(bars, fmt="%.2f")
axes.set_xticks(range(2), ["first copy", "second copy"])
axes.set(ylabel="bits per byte")
axes.margins(y=0.12)
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %% [markdown]
# Token by token, with induction, on the same scale. The second copy is light where a single continuation
# stood there before, and still dark where the last tokens had come with several.

# %%
(scored,) = models["on"].score([code + code])
tokens = models["on"].engine.tokenizer
display(HTML(to_shaded_html(tokens, tokens.encode(code + code), scored.bits.tolist(), most=11)))

# %% [markdown]
# ## What to try next
#
# - `steps = 2000`: does the model without induction find it by itself? Watch the last panel of bars for
#   both.
# - Put code of yours in the place of `code`. How much of it repeats? The arcs tell before any model is
#   asked.
# - `ArchitectureSettings(induction="on", engram="off")`: the n-gram memory is the other way in which our
#   models remember what stood there. docs/model.md says what each feature brings.
