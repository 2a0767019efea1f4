// This file has Windows line ends on purpose.
#include "tinylib/report.h"
#include "tinylib/stack.h"

#include <cassert>
#include <cstdio>

#include "tinylib/counter.h"

namespace {

enum class Mode { kQuiet, kLoud };

int exitCode(bool ok) { return ok ? 0 : 1; }

void freeList(tinylib::Stack<int>& list) {
  while (!list.empty()) list.pop();
}

bool isEven(int n);

bool isOdd(int n) { return n != 0 && isEven(n - 1); }

bool isEven(int n) { return n == 0 || isOdd(n - 1); }

}  // namespace

int main(int argc, char**) {
  const Mode mode = argc > 1 ? Mode::kLoud : Mode::kQuiet;
  tinylib::Circle circle(1.0);
  tinylib::Square square(2.0);
  tinylib::Stack<int> list;
  for (int i = 0; i < 1'000; ++i) list.push(i);
  freeList(list);
  tiny_counter counter;
  tiny_counter_reset(&counter, TINYLIB_VERSION);
  assert(tiny_counter_next(&counter) == 3);
  const std::string text = tinylib::report({&circle, &square});
  if (mode == Mode::kLoud) std::puts(text.c_str());
  return exitCode(list.empty() && isEven(10) && !text.empty());
}
