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

extern "C" void gemv(const Bfloat16* x, const void* weights, const Half* scales, const float* table,
                     const Bfloat16* residual, Bfloat16* output, Int tokens, Int width, Int height, Int bits,
                     Int normalized, Int threads) {
  with_matrices(bits, [&](const auto& view) {
    const auto matrix = view(AnyMatrix{weights, scales, table}, width);
#pragma omp parallel num_threads(threads)
    {
      prefetch(matrix, width, height);
      Tokens read_x = read(x, tokens, width, normalized);
      multiply(read_x.data(), tokens, matrix, width, height, [&](Int token, Int row, float sum) {
        const Int at = token * height + row;
        output[at] = narrow<Bfloat16>(residual ? wide(residual[at]) + rounded(sum) : sum);
      });
    }
  });
}

// With a gate SwiGLU, without one a squared ReLU. All matrices have the same bits.
extern "C" void fused_mlp(const Bfloat16* x, const void* gate, const Half* gate_scales, const void* up,
                          const Half* up_scales, const void* down, const Half* down_scales, const float* table,
                          Bfloat16* output, Int tokens, Int width, Int hidden_width, Int bits, Int threads) {
  Tokens hidden_tokens(tokens, hidden_width);
  float* hidden = hidden_tokens.data();
  with_matrices(bits, [&](const auto& view) {
    const auto opening = view(AnyMatrix{gate, gate_scales, table}, width);
    const auto first = view(AnyMatrix{up, up_scales, table}, width);
    const auto second = view(AnyMatrix{down, down_scales, table}, hidden_width);
#pragma omp parallel num_threads(threads)
    {
      prefetch(gate ? opening : first, width, hidden_width);
      Tokens read_x = read(x, tokens, width, true);
      const auto at = [&](Int token, Int row) { return token * padded(hidden_width) + place(row, hidden_width); };
      if (gate)
        multiply(read_x.data(), tokens, opening, width, hidden_width, [&](Int token, Int row, float sum) {
          const float value = rounded(sum);
          hidden[at(token, row)] = rounded(value / (1 + std::exp(-value)));
        });
      multiply(read_x.data(), tokens, first, width, hidden_width, [&](Int token, Int row, float sum) {
        const float value = rounded(sum), kept = value < 0 ? 0 : value;  // NaN stays
        float& place_of_it = hidden[at(token, row)];
        place_of_it = rounded(gate ? place_of_it * value : kept * kept);
      });
      prefetch(second, hidden_width, width);
#pragma omp barrier
      multiply(hidden, tokens, second, hidden_width, width, [&](Int token, Int row, float sum) {
        const Int to = token * width + row;
        output[to] = narrow<Bfloat16>(wide(x[to]) + rounded(sum));
      });
    }
  });
}

// Codes to bfloat16, for products of many tokens.
extern "C" void dequantize(const void* codes, const Half* scales, const float* table, Bfloat16* output, Int width,
                           Int height, Int bits, Int threads) {
  with_matrices(bits, [&](const auto& view) {
    const auto matrix = view(AnyMatrix{codes, scales, table}, width);
#pragma omp parallel num_threads(threads)
    {
      const Rows rows(height);
      for (Int row = rows.begin; row < rows.end; ++row)
        for (Int i = 0; i < width; i += matrix.chunk) {
          Words words[matrix.chunk / pair];
          matrix.decode_chunk(row, i, words);
          std::memcpy(output + row * width + i, words, std::min(matrix.chunk, width - i) * sizeof *output);
        }
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
