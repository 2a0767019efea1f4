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

constexpr Int lanes = 16, pair = 2 * lanes, longest_chunk = 256;
constexpr Int ahead = 4096;  // weights, 8 KiB; twice or half of it is no better

using Floats = float __attribute__((vector_size(4 * lanes)));         // of an extension of GCC and Clang:
using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));  // any processor has it, in parts

inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

// Neighbours in memory, taken apart by a shift and a mask.
struct Pairs {
  Pairs(Floats even, Floats odd) : even(even), odd(odd) {}
  explicit Pairs(const Bfloat16* from) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    even = reinterpret_cast<Floats>(both << 16);
    odd = reinterpret_cast<Floats>(both & 0xffff0000);
  }
  Floats even, odd;
};

// A token's numbers in memory, with room for the last chunk of any matrix.
inline Int padded(Int width) { return (width + longest_chunk - 1) / longest_chunk * longest_chunk; }

// So of each 32 elements of a vector that enters a product those with even numbers stand first. What is left
// behind the last 32 stays in order.
inline Int place(Int i, Int width) {
  return i < width / pair * pair ? i / pair * pair + i % 2 * lanes + i % pair / 2 : i;
}

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

// A matrix of bfloat16, row by row.
struct Bfloat16Matrix {
  static constexpr Int chunk = pair;
  const Bfloat16* weights;
  Int width;

  template <Int tokens>
  void add_chunk(const float* x, Int stride, Int row, Int i, Floats (&sums)[tokens]) const {
    const Pairs pairs(weights + row * width + i);
    for (Int t = 0; t < tokens; ++t)
      sums[t] += pairs.even * load(x + t * stride + i) + pairs.odd * load(x + t * stride + i + lanes);
  }
  void decode_chunk(Int row, Int i, Words (&to)[1]) const {
    std::memcpy(to, weights + row * width + i, sizeof to);
  }
  float weight(Int row, Int i) const { return wide(weights[row * width + i]); }
  void prefetch(Int row, Int i) const { __builtin_prefetch(weights + row * width + i, 0, 3); }
  static Int whole_width(Int width) { return width / chunk * chunk; }  // the rest follows one by one
};

// Asks for the first of a thread's weights, while there is something else to do.
template <typename Matrix>
void prefetch(const Matrix& matrix, Int width, Int height) {
  const Rows rows(height);
  const Int count = std::min(ahead, (rows.end - rows.begin) * width);
  for (Int i = 0; i < count; i += Matrix::chunk) matrix.prefetch(rows.begin, i);
}

// A matrix times each token of x: calls `use(token, row, sum)` for the thread's rows. Memory is read in one
// stream and asked for ahead, into all caches: a core of a Xeon (Sapphire Rapids) reads 14 GB/s so, 7 when only the
// first cache is filled, and 10 by its own foresight; one of an EPYC 38, 24 when four rows are read at once.
template <Int tokens, typename Matrix, typename Use>
void multiply(const float* x, const Matrix& matrix, Int width, Int height, const Use& use) {
  const Int stride = padded(width), even_width = Matrix::whole_width(width);
  const Rows rows(height);
  for (Int row = rows.begin; row < rows.end; ++row) {
    Floats sums[tokens] = {};
    for (Int i = 0; i < even_width; i += Matrix::chunk) {
      matrix.prefetch(row, i + ahead);
      matrix.template add_chunk<tokens>(x, stride, row, i, sums);
    }
    for (Int t = 0; t < tokens; ++t) {
      float sum = total(sums[t]);
      for (Int i = even_width; i < width; ++i) sum += matrix.weight(row, i) * x[t * stride + i];
      use(t, row, sum);
    }
  }
}

// The same for 1 to 3 tokens.
template <typename Matrix, typename Use>
void multiply(const float* x, Int tokens, const Matrix& matrix, Int width, Int height, const Use& use) {
  if (tokens == 1) multiply<1>(x, matrix, width, height, use);
  if (tokens == 2) multiply<2>(x, matrix, width, height, use);
  if (tokens == 3) multiply<3>(x, matrix, width, height, use);
}

// RMSNorm of one vector, in place, rounded.
inline void normalize(float* x, Int width) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Int i = 0; i < width; ++i) squares += x[i] * x[i];
  const float scale = 1 / std::sqrt(squares / width + std::numeric_limits<float>::epsilon());
#pragma omp simd
  for (Int i = 0; i < width; ++i) x[i] = rounded(x[i] * scale);
}

// Tokens as they enter a product, in memory aligned as vectors are: else it takes a third more time.
class Tokens {
 public:
  Tokens(Int count, Int width) : parts_(count * padded(width) / lanes) {}
  float* data() { return reinterpret_cast<float*>(parts_.data()); }

 private:
  std::vector<Floats> parts_;
};

Tokens read(const Bfloat16* from, Int tokens, Int width, bool normalized) {
  Tokens all(tokens, width);
  for (Int t = 0; t < tokens; ++t, from += width) {
    float* x = all.data() + t * padded(width);
    Int i = 0;
    for (; i + pair <= width; i += pair) {
      const Pairs pairs(from + i);
      std::memcpy(x + i, &pairs.even, sizeof pairs.even);
      std::memcpy(x + i + lanes, &pairs.odd, sizeof pairs.odd);
    }
    for (; i < width; ++i) x[i] = wide(from[i]);
    if (normalized) normalize(x, width);
  }
  return all;
}

}  // namespace
