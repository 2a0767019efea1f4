// Numbers that the kernels read and write: float32, and bfloat16, which is the upper half of one.

#pragma once

#include <cstdint>
#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif

using Int = std::int64_t;

struct Bfloat16 {
  std::uint16_t bits;
};

inline float wide(float value) { return value; }

inline float wide(Bfloat16 value) {
  const std::uint32_t bits = std::uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

struct Half {  // of IEEE 754
  std::uint16_t bits;
};

inline float wide(Half value) {
#ifdef __F16C__
  return _cvtsh_ss(value.bits);
#else  // moved into place, then by 2^112 up, which the exponents are apart
  const std::uint32_t bits = std::uint32_t{value.bits} << 16;
  const std::uint32_t magnitude = (bits & 0x7fffffff) >> 3;
  float result;
  std::memcpy(&result, &magnitude, sizeof result);
  result *= 0x1p112f;
  return bits >> 31 ? -result : result;
#endif
}

template <typename Element>
Element narrow(float value);

template <>
inline float narrow<float>(float value) {
  return value;
}

// To the nearest, ties to even, as torch does.
template <>
inline Bfloat16 narrow<Bfloat16>(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0)};
}
