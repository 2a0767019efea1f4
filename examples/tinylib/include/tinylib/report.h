#ifndef TINYLIB_REPORT_H
#define TINYLIB_REPORT_H

#include <string>
#include <vector>

#include "tinylib/shape.h"

namespace tinylib {

/// The text between two marks. Größe und Fläche: comments may hold any script (面積, площадь).
std::string decorate(const std::string& text);

/// One line per figure, the smallest first.
std::string report(const std::vector<const Shape*>& shapes);

}  // namespace tinylib

#endif  // TINYLIB_REPORT_H
