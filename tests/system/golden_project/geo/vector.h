#ifndef GEO_VECTOR_H
#define GEO_VECTOR_H
#include "limits.h"
#include "matrix.h"

namespace geo {
template <typename T, int N, int M> class Matrix;

template <typename T, int N>
struct Vector {
    T values[N] = {};
    T& operator[](int index) { return values[GEO_CLAMP(index, 0, N - 1)]; }
    const T& operator[](int index) const { return values[GEO_CLAMP(index, 0, N - 1)]; }
};

// Sum of the products of the coordinates of two vectors.
template <typename T, int N>
T dot(const Vector<T, N>& a, const Vector<T, N>& b) {
    T sum{};
    for (int index = 0; index < N; ++index) sum += a[index] * b[index];
    return sum;
}

template <> inline int dot<int, 0>(const Vector<int, 0>&, const Vector<int, 0>&) { return 0; }
}  // namespace geo
#endif
