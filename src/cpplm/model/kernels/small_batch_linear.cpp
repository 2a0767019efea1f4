// Parts of a transformer layer for a few tokens, in bfloat16.
//
// small_batch_linear.py says what the functions stand for. Sums are float32; what torch would round to bfloat16 between
// two operators is rounded here, too. Threads share the rows of a matrix, so that their number changes no bit.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "numbers.h"

namespace {

constexpr Int lanes = 16, pair = 2 * lanes;
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
  explicit Pairs(const Bfloat16* from) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    even = reinterpret_cast<Floats>(both << 16);
    odd = reinterpret_cast<Floats>(both & 0xffff0000);
  }
  Floats even, odd;
};

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

// Asks for the first of a thread's weights, while there is something else to do.
inline void prefetch(const Bfloat16* matrix, Int width, Int height) {
  const Rows rows(height);
  const Int count = std::min(ahead, (rows.end - rows.begin) * width);
  for (Int i = 0; i < count; i += pair) __builtin_prefetch(matrix + rows.begin * width + i, 0, 0);
}

// A matrix times each token of x: calls `use(token, row, sum)` for the thread's rows. Memory is read in one
// stream and asked for ahead: one core reads 38 GB/s, by the processor's own foresight alone 35, and 24 when four
// rows are read at once.
template <Int tokens, typename Use>
void multiply(const float* x, const Bfloat16* matrix, Int width, Int height, const Use& use) {
  const Int even_width = width / pair * pair;
  const Rows rows(height);
  for (Int row = rows.begin; row < rows.end; ++row) {
    const Bfloat16* weights = matrix + row * width;
    Floats evens[tokens] = {}, odds[tokens] = {};
    for (Int i = 0; i < even_width; i += pair) {
      __builtin_prefetch(weights + i + ahead, 0, 0);
      const Pairs pairs(weights + i);
      for (Int t = 0; t < tokens; ++t) {
        evens[t] += pairs.even * load(x + t * width + i);
        odds[t] += pairs.odd * load(x + t * width + i + lanes);
      }
    }
    for (Int t = 0; t < tokens; ++t) {
      float sum = total(evens[t] + odds[t]);
      for (Int i = even_width; i < width; ++i) sum += wide(weights[i]) * x[t * width + i];
      use(t, row, sum);
    }
  }
}

// The same for 1 to 3 tokens.
template <typename Use>
void multiply(const float* x, Int tokens, const Bfloat16* matrix, Int width, Int height, const Use& use) {
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
  Tokens(Int count, Int width) : parts_((count * width + lanes - 1) / lanes) {}
  float* data() { return reinterpret_cast<float*>(parts_.data()); }

 private:
  std::vector<Floats> parts_;
};

Tokens read(const Bfloat16* from, Int tokens, Int width, bool normalized) {
  Tokens all(tokens, width);
  for (Int t = 0; t < tokens; ++t, from += width) {
    float* x = all.data() + t * width;
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

// One head of one token: turned by its angles, normalized, scaled.
void rope_norm(const Bfloat16* from, const float* cosines, const float* sines, Int dim, float scale,
          std::vector<float>& head, Bfloat16* to) {
  const Int half = dim / 2;
  head.resize(dim);
#pragma omp simd
  for (Int i = 0; i < half; ++i) {
    const float first = wide(from[i]), second = wide(from[half + i]);
    head[i] = rounded(first * cosines[i] + second * sines[i]);
    head[half + i] = rounded(second * cosines[i] - first * sines[i]);
  }
  normalize(head.data(), dim);
#pragma omp simd
  for (Int i = 0; i < dim; ++i) to[i] = narrow<Bfloat16>(head[i] * scale);
}

}  // namespace

extern "C" void gemv(const Bfloat16* x, const Bfloat16* weight, const Bfloat16* residual, Bfloat16* output,
                            Int tokens, Int width, Int height, Int normalized, Int threads) {
#pragma omp parallel num_threads(threads)
  {
    prefetch(weight, width, height);
    Tokens read_x = read(x, tokens, width, normalized);
    multiply(read_x.data(), tokens, weight, width, height, [&](Int token, Int row, float sum) {
      const Int at = token * height + row;
      output[at] = narrow<Bfloat16>(residual ? wide(residual[at]) + rounded(sum) : sum);
    });
  }
}

extern "C" void fused_mlp(const Bfloat16* x, const Bfloat16* up, const Bfloat16* down, Bfloat16* output, Int tokens,
                        Int width, Int hidden_width, Int threads) {
  Tokens hidden_tokens(tokens, hidden_width);
  float* hidden = hidden_tokens.data();
#pragma omp parallel num_threads(threads)
  {
    prefetch(up, width, hidden_width);
    Tokens read_x = read(x, tokens, width, true);
    multiply(read_x.data(), tokens, up, width, hidden_width, [&](Int token, Int row, float sum) {
      const float value = rounded(sum), kept = value < 0 ? 0 : value;  // NaN stays
      hidden[token * hidden_width + place(row, hidden_width)] = rounded(kept * kept);
    });
    prefetch(down, hidden_width, width);
#pragma omp barrier
    multiply(hidden, tokens, down, hidden_width, width, [&](Int token, Int row, float sum) {
      const Int at = token * width + row;
      output[at] = narrow<Bfloat16>(wide(x[at]) + rounded(sum));
    });
  }
}

extern "C" void rms_norm(const Bfloat16* x, Bfloat16* output, Int tokens, Int width) {
  std::vector<float> token(width);
  for (Int t = 0; t < tokens; ++t, x += width, output += width) {
    for (Int i = 0; i < width; ++i) token[i] = wide(x[i]);
    normalize(token.data(), width);
    for (Int i = 0; i < width; ++i) output[i] = narrow<Bfloat16>(token[i]);
  }
}

extern "C" void rope_write_cache(const Bfloat16* projected, const Bfloat16* value, const float* cosines, const float* sines,
                         const Int* slots, Bfloat16* query, Bfloat16* keys, Bfloat16* values, Int tokens,
                         Int projected_stride, Int value_stride, Int heads, Int groups, Int dim, float scale) {
  std::vector<float> head;
  for (Int t = 0; t < tokens; ++t) {
    const Bfloat16* from = projected + t * projected_stride;
    const float *cosine = cosines + t * (dim / 2), *sine = sines + t * (dim / 2);
    Bfloat16* to = keys + slots[t] * groups * dim;
    for (Int h = 0; h < heads; ++h)
      rope_norm(from + h * dim, cosine, sine, dim, scale, head, query + (t * heads + h) * dim);
    for (Int g = 0; g < groups; ++g)
      rope_norm(from + (heads + g) * dim, cosine, sine, dim, scale, head, to + g * dim);
    std::memcpy(values + slots[t] * groups * dim, value + t * value_stride, sizeof(Bfloat16) * groups * dim);
  }
}
