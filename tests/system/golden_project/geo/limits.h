// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#define GEO_MAX 16
#define GEO_CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
#ifdef GEO_WIDE
typedef long geo_int;
#else
typedef int geo_int;
#endif
