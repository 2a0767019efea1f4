#include "tinylib/counter.h"

static long clamp(long value) {
  return value < 0 ? 0 : value;
}

void tiny_counter_reset(struct tiny_counter *counter, long step) {
  counter->value = 0;
  counter->step = clamp(step);
}

long tiny_counter_next(struct tiny_counter *counter) {
  counter->value += counter->step;
  return counter->value;
}
