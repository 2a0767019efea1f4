// Numbers that the kernels read and write: float32, and bfloat16, which is the upper half of one.

#pragma once

#include <cstdint>
#include <cstring>

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
