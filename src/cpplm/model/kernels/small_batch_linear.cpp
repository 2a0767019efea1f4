// Parts of a transformer layer for a few tokens, in bfloat16; small_batch_linear.py says what the functions stand for.

#include "quantized_matrix.h"

namespace {

// One head of one token: turned by its angles, normalized if asked, scaled.
void rope_norm(const Bfloat16* from, const float* cosines, const float* sines, Int dim, float scale, Int normalized,
               std::vector<float>& head, Bfloat16* to) {
  const Int half = dim / 2;
  head.resize(dim);
#pragma omp simd
  for (Int i = 0; i < half; ++i) {
    const float first = wide(from[i]), second = wide(from[half + i]);
    head[i] = rounded(first * cosines[i] + second * sines[i]);
    head[half + i] = rounded(second * cosines[i] - first * sines[i]);
  }
  if (normalized) normalize(head.data(), dim);
#pragma omp simd
  for (Int i = 0; i < dim; ++i) to[i] = narrow<Bfloat16>(head[i] * scale);
}

}  // namespace

extern "C" void gemv(const Bfloat16* x, const void* weights, const float* levels, const Bfloat16* residual,
                     Bfloat16* output, Int count, Int width, Int height, Int bits,
                     Int normalized, Int threads) {
  with_matrices(bits, levels, [&](const auto& view) {
    const auto matrix = view(weights, width);
    auto tokens = matrix.tokens(count);
#pragma omp parallel num_threads(threads)
    {
      matrix.prefetch(height);
      read(x, count, width, normalized, tokens);
      matrix.multiply(tokens, count, height, [&](Int token, Int row, float sum) {
        const Int at = token * height + row;
        output[at] = narrow<Bfloat16>(residual ? wide(residual[at]) + rounded(sum) : sum);
      });
    }
  });
}

// With a gate SwiGLU, without one a squared ReLU. All matrices have the same bits and levels.
extern "C" void fused_mlp(const Bfloat16* x, const void* gate, const void* up, const void* down,
                          const float* levels, Bfloat16* output, Int count, Int width, Int hidden_width, Int bits, Int threads) {
  std::vector<float> hidden(count * hidden_width);
  with_matrices(bits, levels, [&](const auto& view) {
    const auto opening = view(gate, width);
    const auto first = view(up, width);
    const auto second = view(down, hidden_width);
    auto tokens = first.tokens(count);
    auto hidden_tokens = second.tokens(count);
#pragma omp parallel num_threads(threads)
    {
      (gate ? opening : first).prefetch(hidden_width);
      read(x, count, width, true, tokens);
      if (gate)
        opening.multiply(tokens, count, hidden_width, [&](Int token, Int row, float sum) {
          const float value = rounded(sum);
          hidden[token * hidden_width + row] = rounded(value / (1 + std::exp(-value)));
        });
      first.multiply(tokens, count, hidden_width, [&](Int token, Int row, float sum) {
        const float value = rounded(sum), kept = value < 0 ? 0 : value;  // NaN stays
        float& unit = hidden[token * hidden_width + row];
        unit = rounded(gate ? unit * value : kept * kept);
      });
      second.prefetch(width);
#pragma omp barrier
#pragma omp for
      for (Int token = 0; token < count; ++token) hidden_tokens.set(token, hidden.data() + token * hidden_width);
      second.multiply(hidden_tokens, count, width, [&](Int token, Int row, float sum) {
        const Int to = token * width + row;
        output[to] = narrow<Bfloat16>(wide(x[to]) + rounded(sum));
      });
    }
  });
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
                         Int projected_stride, Int value_stride, Int heads, Int groups, Int dim, Int normalized, float scale) {
  std::vector<float> head;
  for (Int t = 0; t < tokens; ++t) {
    const Bfloat16* from = projected + t * projected_stride;
    const float *cosine = cosines + t * (dim / 2), *sine = sines + t * (dim / 2);
    Bfloat16* to = keys + slots[t] * groups * dim;
    for (Int h = 0; h < heads; ++h)
      rope_norm(from + h * dim, cosine, sine, dim, scale, normalized, head, query + (t * heads + h) * dim);
    for (Int g = 0; g < groups; ++g)
      rope_norm(from + (heads + g) * dim, cosine, sine, dim, scale, normalized, head, to + g * dim);
    std::memcpy(values + slots[t] * groups * dim, value + t * value_stride, sizeof(Bfloat16) * groups * dim);
  }
}
