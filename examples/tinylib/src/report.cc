#include "tinylib/report.h"

#include <algorithm>

#include "tinylib/stack.h"

namespace tinylib {

// Also in shape.cc, with another meaning: a static function belongs to its file.
static std::string format(const Shape& shape) {
  return "- " + shape.describe() + "\n";
}

static bool smaller(const Shape* left, const Shape* right) { return *left < *right; }

#define TINYLIB_MARK "*"

std::string decorate(const std::string& text) { return TINYLIB_MARK + text + TINYLIB_MARK; }

#undef TINYLIB_MARK

std::string report(const std::vector<const Shape*>& shapes) {
  std::vector<const Shape*> sorted = shapes;
  std::sort(sorted.begin(), sorted.end(), smaller);
  Stack<std::string> lines;
  for (const Shape* shape : sorted) lines.push(format(*shape));
  std::string text;
  while (!lines.empty()) text = lines.pop() + text;
  return text;
}

}  // namespace tinylib
