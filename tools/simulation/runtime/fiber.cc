#include "tools/simulation/runtime/fiber.h"

#include <sys/mman.h>

#include <utility>
#include <vector>

#include "common/base/check.h"

#if !defined(__x86_64__)
#error "The stack switch of the simulation is written for x86-64."
#endif

// Saves the registers that a call preserves, and changes stacks. The address of the old stack goes to *save.
extern "C" void winnow_simulation_switch_stack(void** save, void* load);
asm(R"(
.text
.globl winnow_simulation_switch_stack
.type winnow_simulation_switch_stack, @function
winnow_simulation_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size winnow_simulation_switch_stack, .-winnow_simulation_switch_stack
)");

namespace winnow::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kGuardBytes = 4096;  // below the stack: an overflow faults

Fiber* entering = nullptr;
std::vector<std::byte*> free_stacks;

std::byte* TakeStack() {
  if (!free_stacks.empty()) {
    std::byte* const stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  void* const memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WINNOW_CHECK(memory != MAP_FAILED);
  WINNOW_CHECK(mprotect(memory, kGuardBytes, PROT_NONE) == 0);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(TakeStack()) {
  auto* top = reinterpret_cast<void**>(stack_ + kGuardBytes + kStackBytes);
  *--top = nullptr;  // keeps the alignment that a call leaves
  *--top = reinterpret_cast<void*>(&Fiber::Enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // registers
  own_stack_pointer_ = top;
}

Fiber::~Fiber() {
  if (done_) free_stacks.push_back(stack_);
}

void Fiber::Enter() {
  entering->Run();
}

void Fiber::Run() {
  body_();
  body_ = nullptr;
  done_ = true;
  Suspend();
  WINNOW_CHECK(false);
  __builtin_unreachable();
}

void Fiber::Resume() {
  entering = this;
  winnow_simulation_switch_stack(&resumer_stack_pointer_, own_stack_pointer_);
}

void Fiber::Suspend() {
  winnow_simulation_switch_stack(&own_stack_pointer_, resumer_stack_pointer_);
}

}  // namespace winnow::simulation
