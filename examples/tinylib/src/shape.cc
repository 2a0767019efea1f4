#include "tinylib/shape.h"

#include <cmath>

#include "tinylib/report.h"

namespace tinylib {
namespace {

constexpr double kPi = 3.14159265358979;

// Called before it is written: the order of documents puts `square_of` first.
double square_of(double value);

double disc_area(double radius) { return kPi * square_of(radius); }

double square_of(double value) { return value * value; }

static std::string format(double value) {
  std::string text = std::to_string(value);
  while (text.size() > 1 && text.back() == '0') text.pop_back();
  return text;
}

}  // namespace

Shape::~Shape() = default;

std::string Shape::describe() const { return decorate(name()) + ": " + format(area()); }

Circle::Circle(double radius) : radius_(radius) {}

double Circle::area() const { return disc_area(radius_); }

double Circle::perimeter() const { return 2 * kPi * radius_; }

Rectangle::Rectangle(double width, double height) : width_{width}, height_{height} {}

double Rectangle::area() const { return width_ * height_; }

double Rectangle::perimeter() const { return 2 * (width_ + height_); }

const char* Rectangle::name() const { return "rectangle"; }

std::unique_ptr<Shape> scaled(const Circle& circle, double factor) {
  const double radius = circle.perimeter() / (2 * kPi);
  return std::make_unique<Circle>(radius * factor);
}

std::unique_ptr<Shape> scaled(const Rectangle& rectangle, double horizontal, double vertical) {
  // Width and height solve x^2 - (p / 2) x + a = 0.
  const double half = rectangle.perimeter() / 4;
  const double root = std::sqrt(std::fabs(square_of(half) - rectangle.area()));
  return std::make_unique<Rectangle>((half + root) * horizontal, (half - root) * vertical);
}

bool operator<(const Shape& left, const Shape& right) { return left.area() < right.area(); }

}  // namespace tinylib
