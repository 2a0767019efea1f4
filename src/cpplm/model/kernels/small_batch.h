// What kernels for a few tokens share: vectors of 16 floats, rows divided among threads, and a product that
// reads each weight once for all tokens. Sums are float32; what torch would round to bfloat16 between two operators
// is rounded here, too. Threads share the rows of a matrix, so that their number changes no bit.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "numbers.h"

namespace {

constexpr Int lanes = 16, pair = 2 * lanes;
constexpr Int ahead = 8192;  // bytes; twice or half of it is no better

using Floats = float __attribute__((vector_size(4 * lanes)));         // of an extension of GCC and Clang:
using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));  // any processor has it, in parts

inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

// Neighbours in memory, taken apart by a shift and a mask.
struct Pairs {
  explicit Pairs(const Bfloat16* from) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    even = reinterpret_cast<Floats>(both << 16);
    odd = reinterpret_cast<Floats>(both & 0xffff0000);
  }
  Floats even, odd;
};

inline float rounded(float value) { return wide(narrow<Bfloat16>(value)); }

inline float total(Floats values) {
  float parts[lanes], sum = 0;
  std::memcpy(parts, &values, sizeof parts);
#pragma omp simd reduction(+ : sum)
  for (Int lane = 0; lane < lanes; ++lane) sum += parts[lane];
  return sum;
}

// The rows of a matrix that are this thread's, within a parallel region.
struct Rows {
  explicit Rows(Int height)
      : begin(height * omp_get_thread_num() / omp_get_num_threads()),
        end(height * (omp_get_thread_num() + 1) / omp_get_num_threads()) {}
  Int begin, end;
};

// Tokens as a product in bfloat16 reads them: of each 32 numbers those with even places stand first, so that
// both are aligned as vectors are (else it takes a third more time). What is left behind the last 32 stays in order.
class Tokens {
 public:
  Tokens(Int count, Int width) : width_(width), parts_(count * stride() / lanes) {}

  void set(Int token, const float* x) {
    float* to = reinterpret_cast<float*>(parts_.data()) + token * stride();
    Int i = 0;
    for (; i + pair <= width_; i += pair)
      for (Int lane = 0; lane < lanes; ++lane) {
        to[i + lane] = x[i + 2 * lane];
        to[i + lanes + lane] = x[i + 2 * lane + 1];
      }
    std::memcpy(to + i, x + i, (width_ - i) * sizeof *x);
  }
  const float* of(Int token) const { return reinterpret_cast<const float*>(parts_.data()) + token * stride(); }

 private:
  Int stride() const { return (width_ + lanes - 1) / lanes * lanes; }
  Int width_;
  std::vector<Floats> parts_;
};

// A matrix of bfloat16, row by row. Memory is read in one stream and asked for ahead, into all caches: a core of a
// Xeon (Sapphire Rapids) reads 14 GB/s so, 7 when only the first cache is filled, and 10 by its own foresight; one of
// an EPYC 38, 24 when four rows are read at once.
struct Bfloat16Matrix {
  const Bfloat16* weights;
  Int width;

  Tokens tokens(Int count) const { return Tokens(count, width); }

  // Asks for the first of a thread's weights, while there is something else to do.
  void prefetch(Int height) const {
    const char* first = reinterpret_cast<const char*>(weights + Rows(height).begin * width);
    for (Int i = 0; i < ahead; i += 4 * lanes) __builtin_prefetch(first + i, 0, 3);
  }

  // Calls `use(token, row, sum)` for this thread's rows and 1 to 3 tokens.
  template <typename Use>
  void multiply(const Tokens& x, Int count, Int height, const Use& use) const {
    if (count == 1) multiply_rows<1>(x, height, use);
    if (count == 2) multiply_rows<2>(x, height, use);
    if (count == 3) multiply_rows<3>(x, height, use);
  }

 private:
  template <Int count, typename Use>
  void multiply_rows(const Tokens& x, Int height, const Use& use) const {
    const Int even_width = width / pair * pair;
    const Rows rows(height);
    for (Int row = rows.begin; row < rows.end; ++row) {
      const Bfloat16* from = weights + row * width;
      Floats sums[count] = {};
      for (Int i = 0; i < even_width; i += pair) {
        __builtin_prefetch(reinterpret_cast<const char*>(from + i) + ahead, 0, 3);
        const Pairs pairs(from + i);
        for (Int t = 0; t < count; ++t)
          sums[t] += pairs.even * load(x.of(t) + i) + pairs.odd * load(x.of(t) + i + lanes);
      }
      for (Int t = 0; t < count; ++t) {
        float sum = total(sums[t]);
        for (Int i = even_width; i < width; ++i) sum += wide(from[i]) * x.of(t)[i];
        use(t, row, sum);
      }
    }
  }
};

// RMSNorm of one vector, in place, rounded.
inline void normalize(float* x, Int width) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Int i = 0; i < width; ++i) squares += x[i] * x[i];
  const float scale = 1 / std::sqrt(squares / width + std::numeric_limits<float>::epsilon());
#pragma omp simd
  for (Int i = 0; i < width; ++i) x[i] = rounded(x[i] * scale);
}

// Reads a token, normalized if asked, for a product. Threads share the tokens; call it from all of them.
template <typename Tokens>
void read(const Bfloat16* from, Int count, Int width, bool normalized, Tokens& to) {
  std::vector<float> x(width);
#pragma omp for
  for (Int t = 0; t < count; ++t) {
    for (Int i = 0; i < width; ++i) x[i] = wide(from[t * width + i]);
    if (normalized) normalize(x.data(), width);
    to.set(t, x.data());
  }
}

}  // namespace
