#pragma once

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tinylib {

template <typename T, std::size_t Limit = 1024>
class Stack {
 public:
  void push(T value);
  T pop();
  bool empty() const { return items_.empty(); }
  std::size_t size() const;

 private:
  std::vector<T> items_;
};

template <typename T, std::size_t Limit>
void Stack<T, Limit>::push(T value) {
  if (items_.size() == Limit) throw std::length_error("the stack is full");
  items_.push_back(std::move(value));
}

template <typename T, std::size_t Limit>
T Stack<T, Limit>::pop() {
  if (items_.empty()) throw std::out_of_range("the stack is empty");
  T value = std::move(items_.back());
  items_.pop_back();
  return value;
}

template <typename T, std::size_t Limit>
std::size_t Stack<T, Limit>::size() const {
  return items_.size();
}

// A stack of one item needs no vector.
template <typename T>
class Stack<T, 1> {
 public:
  void push(T value) {
    value_ = std::move(value);
    full_ = true;
  }
  T pop() {
    full_ = false;
    return std::move(value_);
  }
  bool empty() const { return !full_; }

 private:
  T value_{};
  bool full_ = false;
};

}  // namespace tinylib
