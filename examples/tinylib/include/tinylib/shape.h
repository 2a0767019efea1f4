#ifndef TINYLIB_SHAPE_H
#define TINYLIB_SHAPE_H

#include <memory>
#include <string>

#include "tinylib/config.h"

TINYLIB_BEGIN_NAMESPACE

/// What every figure on the plane can do.
class TINYLIB_API Shape {
 public:
  virtual ~Shape();
  virtual double area() const = 0;
  virtual double perimeter() const = 0;
  /// A line for people; the default gives name and area.
  virtual std::string describe() const;
  virtual const char* name() const { return "shape"; }
};

class TINYLIB_API Circle : public Shape {
 public:
  explicit Circle(double radius);
  double area() const override;
  double perimeter() const override;
  const char* name() const override { return "circle"; }

 private:
  double radius_;
};

class TINYLIB_API Rectangle : public Shape {
 public:
  Rectangle(double width, double height);
  double area() const override;
  double perimeter() const override;
  const char* name() const override;

 protected:
  double width_;
  double height_;
};

class TINYLIB_API Square final : public Rectangle {
 public:
  explicit Square(double side) : Rectangle(side, side) {}
  const char* name() const override { return "square"; }
};

// The overloads scale a figure by one factor, or a rectangle by two.
std::unique_ptr<Shape> scaled(const Circle& circle, double factor = 2.0);
std::unique_ptr<Shape> scaled(const Rectangle& rectangle, double horizontal, double vertical);

bool operator<(const Shape& left, const Shape& right);

TINYLIB_END_NAMESPACE

#endif  // TINYLIB_SHAPE_H
