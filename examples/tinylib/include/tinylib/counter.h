/* A counter with a C interface. */
#ifndef TINYLIB_COUNTER_H
#define TINYLIB_COUNTER_H

#ifdef __cplusplus
extern "C" {
#endif

struct tiny_counter {
  long value;
  long step;
};

void tiny_counter_reset(struct tiny_counter *counter, long step);
long tiny_counter_next(struct tiny_counter *counter);

#ifdef __cplusplus
}
#endif

#endif /* TINYLIB_COUNTER_H */
