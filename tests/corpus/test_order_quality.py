"""Of calls outside cycles 99 of 100 are in order, as libclang sees them."""

import json
import random

import order
import pytest

from cpplm.corpus.build import build
from tests.corpus.cpp import TINYLIB, compile_errors, documents_of, needs_gxx, write_files
from tests.corpus.settings import compilable

pytestmark = needs_gxx


def shuffled(seed: int, count: int = 30) -> str:
    """Classes that point at each other, overloads, constructors and methods, in no order whatever."""
    draw = random.Random(seed)
    rank = draw.sample(range(count), count)  # what is called has a lower rank; a few calls lead back up

    def others(number: int, most: int) -> list[int]:
        lower = [n for n in range(count) if rank[n] < rank[number]]
        chosen = draw.sample(lower, min(len(lower), draw.randrange(most)))
        return chosen + draw.sample(range(count), 1) if draw.random() < 0.03 else chosen

    ahead = "".join(f"struct T{n};\nint f{n}(int a);\nint f{n}(int a, int b);\n" for n in range(count))
    types, functions = [], []
    for n in range(count):
        members = "".join(f"  T{m}* to_{m};\n" for m in others(n, 4))
        own = f"  T{n}(int a);\n  int next();\n  int g{n}();\n"
        types.append(f"struct T{n} {{\n{own}{members}}};\n")
        calls = " + ".join(["a", *(f"f{m}(a)" for m in others(n, 3))])
        functions += [
            # Overloads of a free function keep their source order.
            f"int f{n}(int a) {{ return {calls}; }}\nint f{n}(int a, int b) {{ return f{n}(a) + b; }}\n",
            f"T{n}::T{n}(int a) {{ f{n}(g{n}()); }}\n",
            f"int T{n}::g{n}() {{ return f{n}(1, 2); }}\n",
            f"int T{n}::next() {{ return g{n}() + T{n}(1).g{n}(); }}\n",
        ]
    draw.shuffle(types)
    draw.shuffle(functions)
    return ahead + "".join(types) + "".join(functions)


@pytest.mark.parametrize("seed", range(2))
def test_code_in_no_order_is_put_in_order(tmp_path, seed):
    source = shuffled(seed)
    (document,) = documents_of(write_files(tmp_path, {"a.cc": source}))
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""
    reader = order.Reader()
    before, after = reader.order_of(source), reader.order_of(document.text)
    assert before.calls.in_cycles == after.calls.in_cycles
    assert sum(vars(before.calls).values()) == sum(vars(after.calls).values()) > 100
    assert before.calls.share < 0.8
    assert after.calls.share >= 0.99, after.examples
    assert after.uses == before.uses  # types stay where the compiler saw them


def test_the_benchmark_reads_a_corpus(tmp_path, monkeypatch, capsys):
    build(compilable(out=str(tmp_path / "corpus"), projects=(TINYLIB,), workers=1))
    monkeypatch.setattr("sys.argv", ["order", str(tmp_path / "corpus")])
    order.main()
    figures = json.loads(capsys.readouterr().out)["all"]
    assert figures["calls"]["in_order"] >= 10
    assert figures["names"]["in_order"] >= 40
    assert figures["calls"]["out_of_order"] == figures["uses"]["out_of_order"] == 0


def test_the_measure_sees_what_is_out_of_order():
    text = (
        "struct B;\nstruct A { B* b; };\nstruct B { int x; };\nstruct C;\nstruct D { C* c; };\n"
        "struct C { D* d; };\n"
        "int late(int);\nint f(int a) { return late(a); }\nint late(int a) { return a; }\n"
        "int late(double) { return 1; }\n"
        "bool odd(int);\nbool even(int n) { return n == 0 || odd(n - 1); }\n"
        "bool odd(int n) { return even(n - 1); }\n"
        "int last(A* a) { return a->b->x + f(1); }\n"
        "typedef struct E E;\nstruct E { int x; };\ntypedef struct K { int x; } K;\n"
        "enum F : int;\nstruct G { F f; };\nenum F : int { one };\nstruct H : B { G g[2]; };\n"
    )
    found = order.Reader().order_of(text)
    assert vars(found.calls) == {"in_order": 1, "out_of_order": 1, "in_cycles": 2}
    assert (found.names.out_of_order, found.names.in_cycles) == (2, 2)
    assert vars(found.uses) == {"in_order": 4, "out_of_order": 1, "in_cycles": 0}
    assert sorted(found.examples) == ["call: f before late", "use: G before F"]
    assert found.calls.share == 0.5
