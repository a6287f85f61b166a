#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace winnow::simulation {

// A call stack of its own, which runs until it suspends itself and goes on when it is resumed. Several share one
// thread.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it suspends or its body returns. Not from inside a fiber.
  void Resume();
  // Inside the fiber: back to whoever resumed it.
  void Suspend();
  bool done() const { return done_; }

 private:
  [[noreturn]] static void Enter();
  [[noreturn]] void Run();

  std::function<void()> body_;
  std::byte* stack_ = nullptr;
  void* own_stack_pointer_ = nullptr;
  void* resumer_stack_pointer_ = nullptr;
  bool done_ = false;
};

}  // namespace winnow::simulation
