#include "matrix.h"
#include <cmath>
#if defined(GEO_TRACE)
#include <cstdio>
#define TRACE(what) std::printf("%s\n", #what)
#else
#define TRACE(what)
#endif

namespace geo {
namespace {
// How far two vectors lie apart, as the length of their difference.
double distance(const Vector<double, 3>& a, const Vector<double, 3>& b) {
    double sum = 0.0;
    for (int index = 0; index < 3; ++index) {
        const double difference = a[index] - b[index];
        sum += difference * difference;
    }
    return std::sqrt(sum);
}
}  // namespace

/// Repeats a step of Jacobi's method until the solution hardly moves any more.
int solve(const Matrix<double, 3>& a, const Vector<double, 3>& b, Vector<double, 3>& x) {
    for (int round = 0; round < 100; ++round) {
        TRACE(round);
        Vector<double, 3> next;
        for (int row = 0; row < 3; ++row) {
            double rest = b[row];
            for (int column = 0; column < 3; ++column) {
                if (column != row) rest -= a.at(row, column) * x[column];
            }
            next[row] = rest / a.at(row, row);
        }
        const double moved = distance(next, x);
        x = next;
        if (moved < 1e-9) return round;
    }
    return -1;
}
}  // namespace geo
