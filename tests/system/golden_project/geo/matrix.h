// SPDX-License-Identifier: Apache-2.0 OR MIT
// Written by Ada <ada.writes@some-company.com>
#ifndef GEO_MATRIX_H
#define GEO_MATRIX_H
#include "limits.h"
#include "vector.h"

namespace geo {

/// A matrix of N rows and M columns.
template <typename T, int N, int M = N>
class Matrix {
public:
    static_assert(N <= GEO_MAX && M <= GEO_MAX, "too large");

    Matrix() : cells_{} {}

    T& at(int row, int column) { return cells_[row * M + column]; }
    const T& at(int row, int column) const { return cells_[row * M + column]; }

    /** Multiplies the matrix by a vector.
     *  @param v the vector
     *  @return a new vector */
    Vector<T, N> operator*(const Vector<T, M>& v) const {
        Vector<T, N> product;
        for (int row = 0; row < N; ++row) {
            for (int column = 0; column < M; ++column) {
                product[row] += at(row, column) * v[column];
            }
        }
        return product;
    }

private:
    T cells_[N * M];
};

}  // namespace geo
#endif
