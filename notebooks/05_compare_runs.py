# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Comparing runs
#
# Is a change better, or was it luck? Four short runs answer that for two changes: a base, the base with
# another seed, and two runs that differ in one setting each. Their logs are read with the functions behind
# `cpplm runs compare`.

# %% [markdown]
# ## Settings
#
# `changes` are settings by name, of any field of `TrainSettings`. With induction or the memory of n-grams
# turned off the model loses a part; put in what you want to know. Each run takes about half a minute on a
# quiet laptop.

# %% tags=["parameters"]
from cpplm.model.settings import ArchitectureSettings

project = ""  # a folder with C++; empty: the headers of g++
steps = 150
changes = {
    "base": {},
    "other seed": {"seed": 1},
    "no induction": {"architecture": ArchitectureSettings(induction="off")},
    "no n-grams": {"architecture": ArchitectureSettings(engram="off")},
}

# %%
import tempfile
from pathlib import Path

from cpplm.cli import corpus
from cpplm.cli import tokenizer as tokenizers
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.train import TokenizerSettings

work = Path(tempfile.mkdtemp(prefix="cpplm-"))
text, vocabulary = str(work / "corpus"), work / "tokenizer.json"
projects = (Path(project),) if project else ()
corpus.build(CorpusSettings(text, projects, cxx_headers=not project, val_split="unit", workers=1))
trained = TokenizerSettings(vocabulary, text, vocab_size=2048, soft_vocab_limit=True, workers=1)
print(tokenizers.train(trained).text)

# %% [markdown]
# ## The runs
#
# One settings object is the base, and `replace` changes what differs. Everything else, the order of
# documents too, stays equal: only then does a difference at the end tell of the change. Each run has a
# folder of its own.

# %%
from dataclasses import replace

from cpplm.cli.train import train
from cpplm.optim.schedules import LearningRates
from cpplm.train.settings import TrainSettings

base = TrainSettings(
    (text,), vocabulary, work / "base",
    depth=2, head_dim=32, max_seq_len=256, device_batch_size=8, total_batch_size=2048,
    num_iterations=steps, rates=LearningRates(matrix_lr=0.2, embedding_lr=3.0, unembedding_lr=0.04),
    eval_every=25, eval_tokens=16_384, sample_every=-1, no_compile=True,
)  # fmt: skip
for name, changed in changes.items():
    print(name, "-", train(replace(base, out=work / name, **changed)).text)

# %% [markdown]
# ## The table
#
# This is what `cpplm runs compare RUN RUN ...` prints: figures side by side, then the settings in which the
# runs differ, so that nobody has to remember. `time to` is when a run was as good as the worst of them ever
# got; on a machine that did other things, too, read `tokens to`. With `--out page.html` it also writes a
# page with curves.

# %%
from cpplm.cli.runs import RunCompareSettings
from cpplm.cli.runs import compare as compare_command

folders = tuple(str(work / name) for name in changes)
print(compare_command(RunCompareSettings(folders)).text)

# %% [markdown]
# ## Curves
#
# Losses of single batches are noise above all: some code is harder than other code. Smoothed they can be
# read, yet what decides is the right side, bits per byte on text that no run learned from. Look at the
# distance between the two seeds first, and only then at the others.

# %%
import matplotlib.pyplot as plt

from cpplm.train.report.compare import compare, read_runs
from cpplm.train.report.curves import smooth

histories = read_runs(folders)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for number, (name, history) in enumerate(zip(changes, histories, strict=True)):
    losses = [step["loss"] for step in history.steps]
    left.plot(losses, color=f"C{number}", alpha=0.15)
    left.plot(smooth(losses), color=f"C{number}", label=name)
    points = [(each["step"], each["bits_per_byte"]) for each in history.validations if each["step"]]
    right.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=name, markersize=4)
left.set(title="training", xlabel="step", ylabel="loss, nats per token")
right.set(title="validation", xlabel="step", ylabel="bits per byte")
right.legend()
plt.show()

# %% [markdown]
# ## The same batches
#
# Runs with one seed read the same batches, so their losses can be compared batch by batch. What is hard for
# one is hard for the other, and falls away in the difference. Below is each run's loss less that of the
# base, faint and smoothed. The other seed read other batches: its faint line swings far wider.

# %%
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
reference = [step["loss"] for step in histories[0].steps]
for number, (name, history) in enumerate(zip(changes, histories, strict=True)):
    differences = [step["loss"] - other for step, other in zip(history.steps, reference, strict=True)]
    axes.plot(differences, color=f"C{number}", alpha=0.2)
    axes.plot(smooth(differences), color=f"C{number}", label=name)
axes.set(xlabel="step", ylabel="loss less the base's", title="below zero is better than the base")
axes.legend()
plt.show()

# %% [markdown]
# ## How to read noise
#
# The two seeds differ by luck alone, so their distance is a first measure of luck. The last column has each
# run's distance from the base in these units. At 1 or 2 you know nothing, at 5 or 10 there is likely
# something. One pair of seeds measures luck badly, though: it can be small by luck.

# %%
comparison = compare(histories)
bits = dict(zip(changes, (run["bits_per_byte"] for run in comparison.runs), strict=True))
luck = abs(bits["other seed"] - bits["base"])
for name, value in bits.items():
    distance = value - bits["base"]
    print(f"{name:14} {value:.4f} bits per byte {distance:+.4f} {abs(distance) / luck:8.1f} x luck")

# %% [markdown]
# As a picture: the band is as wide as the distance of the two seeds, to either side of the base.

# %%
figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.axvspan(bits["base"] - luck, bits["base"] + luck, color="0.9")
axes.plot(list(bits.values()), range(len(bits)), "o")
axes.set_yticks(range(len(bits)), list(bits))
axes.margins(y=0.15)
axes.invert_yaxis()
axes.set(xlabel="bits per byte (left is better)")
plt.show()

# %% [markdown]
# ## What to try next
#
# - Three seeds of each: `changes["base, seed 2"] = {"seed": 2}` and so on. Our own claims need three
#   (LOG.md).
# - A change of size, `{"depth": 3}`: it costs more per step, so compare `time to`, not steps.
# - `rates=LearningRates(matrix_lr=0.1, ...)`: many changes are better only because the learning rate suits
#   them better. Tune it for both sides before you believe in either.
# - Runs of yours: `folders = ("../runs/first", "../runs/second")`.
