# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One TPU chip, in JAX
#
# cpplm has two backends: PyTorch for CPUs and GPUs, JAX for TPUs. Both train the same model on the same
# batches. Here both run, on the CPU where there is nothing else, and you see that they agree, what JAX
# compiles, and whether a model would fit a chip. Whoever opens this on a machine with a TPU trains on that,
# without a change.
#
# Nobody has run this notebook on a TPU yet: docs/tpu.md says what was done instead.

# %% [markdown]
# ## On Colab
#
# Choose a TPU as the runtime first. This cell installs cpplm where it is missing. Say in `package` where to
# get it from: the address of the repository, or a folder that you uploaded, `./cpplm[tpu,notebooks]`. JAX
# comes along. Anywhere else the cell does nothing.

# %%
import importlib.util
import subprocess
import sys

package = "cpplm[tpu,notebooks] @ git+THE_REPOSITORY"
if importlib.util.find_spec("cpplm") is None:
    subprocess.check_call([sys.executable, "-m", "pip", "install", package])

# %% [markdown]
# ## Settings
#
# The same small model trains twice, for `steps` steps with each backend: on a CPU about half a minute each,
# compiling included. The text is the C++ library that came with g++, or the folder `project`.

# %% tags=["parameters"]
project = ""  # a folder with C++; empty: the headers of g++
steps = 100
depth = 2
remat = "none"  # of the question whether a model fits a chip; "full" compiles for minutes

# %%
import tempfile
from pathlib import Path

from cpplm.cli import corpus
from cpplm.cli import tokenizer as tokenizers
from cpplm.core.hardware import count_tpus
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.train import TokenizerSettings

work = Path(tempfile.mkdtemp(prefix="cpplm-"))
text, vocabulary = str(work / "corpus"), work / "tokenizer.json"
projects = (Path(project),) if project else ()
corpus.build(CorpusSettings(text, projects, cxx_headers=not project, val_split="unit", workers=1))
trained = TokenizerSettings(vocabulary, text, vocab_size=2048, soft_vocab_limit=True, workers=1)
print(tokenizers.train(trained).text)
print(count_tpus(), "TPU chips here")

# %% [markdown]
# ## One run with each
#
# All that differs is `backend`. Weights begin equal, since both take what PyTorch draws from the seed, and
# batches come from the same loader. `precision="fp32"` is for the comparison: left alone, a TPU multiplies
# in bfloat16.

# %%
import time

from cpplm.cli.train import train
from cpplm.optim.schedules import LearningRates
from cpplm.train.memory_log import MemoryLogSettings
from cpplm.train.settings import TrainSettings

wall = {}
for backend in ("torch", "jax"):
    begin = time.perf_counter()
    settings = TrainSettings(
        (text,), vocabulary, work / backend,
        backend=backend, device_type="tpu" if backend == "jax" and count_tpus() else "cpu", precision="fp32",
        depth=depth, head_dim=32, max_seq_len=256, device_batch_size=8, total_batch_size=2048,
        num_iterations=steps, rates=LearningRates(matrix_lr=0.2, embedding_lr=3.0, unembedding_lr=0.04),
        eval_every=50, eval_tokens=16_384, sample_every=-1, no_compile=backend == "torch",
        memory=MemoryLogSettings(memory_level="hlo" if backend == "jax" else "metrics"),
    )  # fmt: skip
    print(backend, "-", train(settings).text)
    wall[backend] = time.perf_counter() - begin

# %% [markdown]
# ## Do they agree?
#
# On the left both losses, one curve upon the other. On the right how far apart they are. The first loss
# should be the same to six digits. Sums in another order round differently, and training lets such
# differences grow, so later ones agree to three or four. A curve on the right that began near 0.1 would be
# a fault.

# %%
import matplotlib.pyplot as plt

from cpplm.train.report.log_reader import RunHistory

runs = {name: RunHistory(work / name) for name in ("torch", "jax")}
losses = {name: [step["loss"] for step in run.steps] for name, run in runs.items()}
apart = [abs(ours - theirs) for ours, theirs in zip(losses["torch"], losses["jax"], strict=True)]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
left.plot(losses["torch"], linewidth=4, alpha=0.4, label="PyTorch")
left.plot(losses["jax"], linewidth=1, label="JAX")
left.set(xlabel="step", ylabel="loss, nats per token")
left.legend()
right.semilogy([max(value, 1e-7) for value in apart], color="C2")
right.set(xlabel="step", ylabel="difference of the losses")
plt.show()

# %% [markdown]
# ## What was compiled
#
# PyTorch sends one operation after the other. JAX traces the whole step, forward, backward and optimizer,
# to one program, and XLA compiles it before the first step. Nothing that a schedule changes compiles it
# again; another length of rows would. `memory_level="hlo"` kept the texts of the programs.

# %%
programs = sorted((work / "jax" / "profiles").glob("*.txt"))
for program in programs:
    lines = program.read_text().splitlines()
    products = sum(" dot(" in line for line in lines)
    print(f"{program.name}: {len(lines):,} lines, {products} products of matrices")

# %% [markdown]
# ## How long a step takes
#
# The first step is slower, then it is even. On a CPU PyTorch is usually ahead; that says nothing of a TPU,
# where JAX has kernels of its own for attention. The rest is opening, validation, saving and, with JAX,
# compiling.

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for name, run in runs.items():
    seconds = [step["step_seconds"] for step in run.steps]
    rest = wall[name] - sum(seconds)
    median = sorted(seconds)[len(seconds) // 2]
    axes.plot(seconds, label=f"{name}: {median:.3f} s a step, {rest:.0f} s for the rest")
axes.set(xlabel="step", ylabel="seconds", ylim=0)
axes.legend()
plt.show()

# %% [markdown]
# ## From a TPU to your laptop
#
# A checkpoint does not say which library wrote it. What JAX trained is loaded by PyTorch here, as it would
# be after a run on a TPU, and could be trained further by either.

# %%
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.generate.settings import ModelSource, SamplingSettings

model = CheckpointModel.load(ModelSource(str(work / "jax"), device_type="cpu"))
prompt = "template<typename _Tp>\n  struct "
(completion,) = model.engine.complete(prompt, SamplingSettings(max_new_tokens=40, temperature=0.7))
print(prompt + completion.text)

# %% [markdown]
# ## Would it fit a chip?
#
# Ask before there is one: `cpplm tpu check` compiles the step for a chip that need not be here, with the
# TPUs' own compiler, and reads its memory off. That compiler is a part of `cpplm[tpu]`, on Linux; without
# it the command says so. Its flags are those of `cpplm train`. `v5e-1` is one chip with 16 GiB; the answer
# takes about half a minute.

# %%
check = [sys.executable, "-m", "cpplm.cli.main", "tpu", "check", "v5e-1", "--tokenizer", "cpp-32k"]
check += ["--depth", "12", "--max_seq_len", "2048", "--device_batch_size", "8", "--total_batch_size", "16384"]
answer = subprocess.run([*check, "--remat", remat], capture_output=True, text=True, check=False)
print(answer.stdout or answer.stderr)

# %% [markdown]
# On 2026-11-25 the answer was that this model of 320 million parameters needs 34.8 GiB for eight rows of
# 2,048 tokens and does not fit. With `remat = "full"`, which computes activations again in the backward
# pass, it needs 12.4 GiB and does; that took the compiler four minutes of a processor instead of seven
# seconds.

# %% [markdown]
# ## What differs on a chip
#
# | | here, on a CPU | on a TPU |
# |---|---|---|
# | products | float32 | bfloat16 unless `precision="fp32"` |
# | attention | einsums that make every score | Splash, a Pallas kernel that never holds all scores |
# | batches | computed where they are made | sent ahead while the step before runs |
# | several chips | virtual ones, to try a mesh | `mesh="data=4"` and so on, see docs/tpu.md |
# | compiled programs | compiled anew each time | kept on disk, or in the run's bucket |

# %% [markdown]
# ## What to try next
#
# - `depth = 4`, then look at the seconds for the rest: layers are scanned, so compiling should grow little.
# - In the check, `--device_batch_size 4` or `--depth 8`: where does a chip end?
# - A run on machines that come and go: docs/tpu-spot.md, and `make demo-tpu`, which plays it on this
#   machine.
