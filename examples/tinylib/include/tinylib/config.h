// Settings of the whole library.
#ifndef TINYLIB_CONFIG_H
#define TINYLIB_CONFIG_H

#define TINYLIB_VERSION 3

#if defined(__GNUC__)
#define TINYLIB_API __attribute__((visibility("default")))
#else
#define TINYLIB_API
#endif

#define TINYLIB_BEGIN_NAMESPACE namespace tinylib {
#define TINYLIB_END_NAMESPACE }

#endif  // TINYLIB_CONFIG_H
