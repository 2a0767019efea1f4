# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a C++ project to a model
#
# This notebook goes the whole way once, small: a C++ project becomes documents, the documents a tokenizer,
# both a model, and the model completes code. It takes a minute or two on a laptop and downloads nothing.
#
# Every step is one function with one settings object. The command line calls the same ones: what is
# `build(CorpusSettings(...))` here is `cpplm corpus build ...` there, and the fields have the names of the
# flags.

# %% [markdown]
# ## Settings
#
# Everything worth changing stands here. `project` may be any folder with C++ in it, yours for example. A
# model of a few kilobytes of code would learn them by heart and nothing else, so with `headers` the C++
# library that came with your g++ is learned from, too. More `steps` make the model better, at about a fifth
# of a second each.

# %% tags=["parameters"]
project = "../examples/tinylib"  # nine small files that were written for this purpose
headers = True  # learn from the headers of g++, too
vocab_size = 2048
steps = 200

# %% [markdown]
# All files go to a temporary folder. Give `work` a name of your own, such as `Path("../runs/first")`, to
# keep them.

# %%
import tempfile
from pathlib import Path

work = Path(tempfile.mkdtemp(prefix="cpplm-"))

# %% [markdown]
# ## A project
#
# These files are all that goes in: no build system is asked and nothing is compiled. cpplm finds the C and
# C++ files, leaves out what is generated, copied or ignored by git, and reads the rest.

# %%
for path in sorted(Path(project).rglob("*.*")):
    if path.is_file():
        print(f"{path.stat().st_size:6,} bytes  {path.relative_to(project)}")

# %% [markdown]
# ## Documents
#
# A document is what a model reads at one go. `mode="compilable"` makes documents that stand alone: a header
# with the source file that implements it, in the order in which a compiler would read them, and of other
# files only the declarations that these need. The report says how much came of it.

# %%
from cpplm.cli import corpus
from cpplm.corpus.settings import CorpusSettings

sliced = CorpusSettings(str(work / "sliced"), (Path(project),), mode="compilable", workers=1)
print(corpus.build(sliced).text)

# %% [markdown]
# Here is one of them. On white is the text of the files that the document was made for, on orange what it
# borrows from others. The table below it names the borrowed lines, and why each came along: the name that
# they declare, and the line that needs it.

# %%
from IPython.display import HTML, display

from cpplm.corpus.reports.inspect_corpus import InspectSettings, document_html, inspect_corpus

_, documents = inspect_corpus(InspectSettings(str(work / "sliced"), num=20))
borrowing = [document for document in documents if document["borrowed"]]
display(HTML(document_html(min(borrowing, key=lambda document: len(document["text"])))))

# %% [markdown]
# Try `mode="file"`, which takes files as they are, or `mode="cross-file"`, which also brings along the
# bodies of functions that are called. Training below uses `file`, the default: on a small budget, plain
# files taught our models most.

# %%
text = CorpusSettings(
    str(work / "corpus"), (Path(project),), cxx_headers=headers, val_split="unit", workers=1
)
print(corpus.build(text).text)

# %% [markdown]
# ## Tokens
#
# A model reads numbers. The tokenizer is trained on the corpus: it begins with single bytes and, again and
# again, makes one token of the pair of neighbours that occurs most often. What is frequent in this code
# becomes short.

# %%
from cpplm.cli import tokenizer as tokenizers
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import TokenizerSettings

tokenizer_file = work / "tokenizer.json"
trained = TokenizerSettings(
    tokenizer_file, str(work / "corpus"), vocab_size=vocab_size, soft_vocab_limit=True, workers=1
)
print(tokenizers.train(trained).text)
tokenizer = Tokenizer.load(tokenizer_file)

# %% [markdown]
# Each colour is a token, an arrow a line break. Keywords are one token, names of this project several, for
# they are rare in the library. `02_tokenizers_seen` goes on from here.

# %%
from cpplm.tokenizer.visualize import to_html

function = """\
double Rectangle::area() const {
  return width_ * height_;
}
"""
display(HTML(to_html(tokenizer, tokenizer.encode(function))))

# %% [markdown]
# ## Training
#
# A transformer of two layers: small, but with all parts of a large one. It reads rows of 256 tokens and
# learns to guess each token from those before it. Every 50 steps it is tried on documents that it never
# learns from.

# %%
from cpplm.cli.train import train
from cpplm.optim.schedules import LearningRates
from cpplm.train.settings import TrainSettings

run = work / "run"
settings = TrainSettings(
    (str(work / "corpus"),), tokenizer_file, run,
    depth=2, head_dim=32, max_seq_len=256, device_batch_size=8, total_batch_size=2048,
    num_iterations=steps, rates=LearningRates(matrix_lr=0.2, embedding_lr=3.0, unembedding_lr=0.04),
    eval_every=50, eval_tokens=16_384, sample_every=-1, no_compile=True,
)  # fmt: skip
print(train(settings).text)

# %% [markdown]
# The run folder has a log with one record per step, which `RunHistory` reads. On the left is the loss of
# each batch, in nats per token: faint as it was, and smoothed, which lags behind. On the right is what
# counts: bits per byte of text never learned from. Plain text takes 8, so 1 is an eighth of it. Does the
# right curve still fall at the end? Then more steps would help.

# %%
import matplotlib.pyplot as plt

from cpplm.train.report.curves import smooth
from cpplm.train.report.log_reader import RunHistory

history = RunHistory(run)
losses = [step["loss"] for step in history.steps]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
left.plot(losses, alpha=0.3)
left.plot(smooth(losses), color="C0")
left.set(title="training", xlabel="step", ylabel="loss, nats per token")
right.plot(
    [each["step"] for each in history.validations],
    [each["bits_per_byte"] for each in history.validations],
    "o-", color="C1",
)  # fmt: skip
right.set(title="validation", xlabel="step", ylabel="bits per byte", ylim=0)
plt.show()

# %% [markdown]
# ## What it knows
#
# The model, with its tokenizer, comes from the checkpoint that the run left. `score` says for each token of
# a text how many bits it takes to tell the model which one came: 0 if it was certain, 1 if it was one of
# two that it held equally likely, 11 for a blind guess among 2,048. The text is new, but in the style of
# the library.

# %%
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.generate.settings import ModelSource

model = CheckpointModel.load(ModelSource(str(run)))
new_code = """\
#include <vector>

namespace std
{
  template<typename _Tp>
    class grid
    {
    public:
      typedef _Tp value_type;
      typedef typename vector<_Tp>::iterator iterator;

      iterator
      begin() noexcept
      { return _M_cells.begin(); }

      iterator
      end() noexcept
      { return _M_cells.end(); }

    private:
      size_t _M_width;
      vector<_Tp> _M_cells;
    };
} // namespace std
"""
(scored,) = model.score([new_code])
print(f"{scored.bits.sum() / len(new_code):.2f} bits per byte of this text")

# %% [markdown]
# Dark is what surprised it. Look where it is dark: at names that nobody could guess, where they first come.
# And where it is light: ends of words and lines, indentation, and names that come again.

# %%
from cpplm.tokenizer.visualize import to_shaded_html

display(HTML(to_shaded_html(tokenizer, tokenizer.encode(new_code), scored.bits.tolist(), most=11)))

# %% [markdown]
# ## A completion
#
# Writing is guessing again and again: a token is drawn from what the model holds likely and becomes part of
# the text. At this size the shape is right before the sense is. `temperature=0` takes the likeliest token
# each time; another `seed` gives another text.

# %%
from cpplm.generate.settings import SamplingSettings

prompt = "template<typename T>\n  class stack\n  {\n  public:\n"
for seed in (0, 1):
    (completion,) = model.engine.complete(
        prompt, SamplingSettings(max_new_tokens=60, temperature=0.7, seed=seed)
    )
    print(f"---- seed {seed}\n{prompt}{completion.text}\n")

# %% [markdown]
# ## What to try next
#
# - `steps = 1000`, then `depth=4`: which of the two makes more of your time? Compare as in
#   `05_compare_runs`.
# - `project = ` a folder of your own, `headers = False`: the curve on the right turns up again when the
#   model has learnt a small project by heart. That is overfitting, and more code is what helps.
# - The same from the command line, larger, with a page and a server at the end: `make demo
#   PROJECTS="~/src/mine" MINUTES=30`, and docs/your-projects.md.
