// The clocks, threads, locks and random numbers of the C and C++ libraries, as the simulation has them: these functions
// take the place of the libraries' own in a program that they are linked into. While there is a Runtime they work in
// its time; otherwise there is one thread, and they do what the libraries' do for it.
//
// That the calls are replaced, and not the objects that make them, is what makes the rest real: not a line of a
// simulated component knows of the simulation, and none can read a clock or start a thread past it.
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>

#include "common/base/check.h"
#include "tools/simulation/runtime/runtime.h"

namespace {

using winnow::simulation::kNever;
using winnow::simulation::kSecond;
using winnow::simulation::Nanos;
using winnow::simulation::Runtime;
using winnow::simulation::Thread;

long RawSyscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

int RawClock(clockid_t clock, timespec* time) {
  return static_cast<int>(RawSyscall(SYS_clock_gettime, clock, reinterpret_cast<long>(time)));
}

Nanos ToNanos(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

timespec ToTimespec(Nanos time) {
  return {.tv_sec = time / kSecond, .tv_nsec = time % kSecond};
}

bool IsUnixClock(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

Nanos Now(clockid_t clock) {
  Runtime* const runtime = Runtime::current();
  return IsUnixClock(clock) ? runtime->UnixNow() : runtime->ReadClock();
}

// A point of some clock in virtual time.
Nanos Deadline(clockid_t clock, const timespec& time) {
  const Nanos left = ToNanos(time) - Now(clock);
  return Runtime::current()->now() + std::max<Nanos>(left, 0);
}

// 0: no thread of the simulation.
uint64_t Self() {
  const Runtime* const runtime = Runtime::current();
  return runtime == nullptr || runtime->running() == nullptr ? 0 : runtime->running()->id;
}

// True when woken by WakeOne or WakeAll of the same object.
bool WaitOn(const void* object, Nanos deadline) {
  Runtime* const runtime = Runtime::current();
  WINNOW_CHECK(runtime != nullptr && runtime->running() != nullptr);
  Thread* const self = runtime->running();
  runtime->waiters[object].push_back(self);
  if (runtime->Block(deadline)) return true;
  std::deque<Thread*>& waiters = runtime->waiters[object];
  std::erase(waiters, self);
  if (waiters.empty()) runtime->waiters.erase(object);
  return false;
}

int WakeSome(const void* object, int most) {
  Runtime* const runtime = Runtime::current();
  if (runtime == nullptr) return 0;
  const auto found = runtime->waiters.find(object);
  if (found == runtime->waiters.end()) return 0;
  int woken = 0;
  while (woken < most && !found->second.empty()) {
    Thread* const thread = found->second.front();
    found->second.pop_front();
    if (thread->process->dead) continue;
    runtime->Wake(thread);
    ++woken;
  }
  if (found->second.empty()) runtime->waiters.erase(found);
  return woken;
}

int Lock(pthread_mutex_t* mutex, Nanos deadline) {
  auto& data = mutex->__data;
  const int self = static_cast<int>(Self()) + 1;
  while (data.__lock != 0) {
    if ((data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP && data.__owner == self) {
      ++data.__count;
      return 0;
    }
    WINNOW_CHECK(data.__owner != self);
    if (!WaitOn(mutex, deadline) && data.__lock != 0 && deadline != kNever) return ETIMEDOUT;
  }
  data.__lock = 1;
  data.__owner = self;
  data.__count = 1;
  return 0;
}

void SleepFor(const timespec& time) {
  Runtime* const runtime = Runtime::current();
  if (Self() == 0) return;
  runtime->Sleep(ToNanos(time));
}

}  // namespace

namespace std::chrono {
inline namespace _V2 {
steady_clock::time_point steady_clock::now() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time_point(nanoseconds(ToNanos(time)));
}
system_clock::time_point system_clock::now() noexcept {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time_point(nanoseconds(ToNanos(time)));
}
}  // namespace _V2
}  // namespace std::chrono

std::random_device::result_type std::random_device::_M_getval() {
  Runtime* const runtime = Runtime::current();
  WINNOW_CHECK(runtime != nullptr);
  return static_cast<result_type>(runtime->Random());
}

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (Runtime::current() == nullptr) return RawClock(clock, time);
  *time = ToTimespec(Now(clock));
  return 0;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* time) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (time != nullptr) *time = now.tv_sec;
  return now.tv_sec;
}

ssize_t getrandom(void* buffer, size_t size, unsigned int flags) {
  Runtime* const runtime = Runtime::current();
  if (runtime == nullptr)
    return RawSyscall(SYS_getrandom, reinterpret_cast<long>(buffer), static_cast<long>(size), flags);
  for (size_t i = 0; i < size; ++i)
    static_cast<unsigned char*>(buffer)[i] = static_cast<unsigned char>(runtime->Random());
  return static_cast<ssize_t>(size);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return Lock(mutex, kNever);
}
int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* until) noexcept {
  return Lock(mutex, Deadline(CLOCK_REALTIME, *until));
}
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* until) noexcept {
  return Lock(mutex, Deadline(clock, *until));
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (mutex->__data.__lock != 0) return EBUSY;
  return Lock(mutex, kNever);
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  auto& data = mutex->__data;
  if ((data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP && data.__count > 1) {
    --data.__count;
    return 0;
  }
  data.__lock = 0;
  data.__owner = 0;
  data.__count = 0;
  WakeSome(mutex, 1);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  pthread_mutex_unlock(mutex);
  WaitOn(condition, kNever);
  return Lock(mutex, kNever);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  const Nanos deadline = Deadline(clock, *until);
  pthread_mutex_unlock(mutex);
  const bool woken = WaitOn(condition, deadline);
  Lock(mutex, kNever);
  return woken ? 0 : ETIMEDOUT;
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, until);
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  WakeSome(condition, 1);
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  WakeSome(condition, INT32_MAX);
  return 0;
}
int pthread_cond_destroy(pthread_cond_t*) noexcept {
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*body)(void*), void* argument) noexcept {
  Runtime* const runtime = Runtime::current();
  WINNOW_CHECK(runtime != nullptr && runtime->running() != nullptr);  // a thread outside of the simulation
  *thread = runtime->Spawn(runtime->running()->process, [body, argument] { body(argument); })->id;
  return 0;
}
int pthread_join(pthread_t thread, void**) {
  Runtime* const runtime = Runtime::current();
  Thread* const joined = runtime->FindThread(thread);
  WINNOW_CHECK(joined != nullptr);
  while (!joined->done) {
    joined->joiners.push_back(runtime->running());
    runtime->Block();
  }
  return 0;
}
int pthread_detach(pthread_t) noexcept {
  return 0;
}
pthread_t pthread_self() noexcept {
  const uint64_t self = Self();
  return self != 0 ? self : reinterpret_cast<pthread_t>(__builtin_thread_pointer());
}
int pthread_setname_np(pthread_t, const char*) noexcept {
  return 0;
}

int nanosleep(const timespec* time, timespec*) {
  SleepFor(*time);
  return 0;
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec*) {
  if ((flags & TIMER_ABSTIME) == 0) {
    SleepFor(*time);
  } else if (Self() != 0) {
    Runtime::current()->Block(Deadline(clock, *time));
  }
  return 0;
}
int usleep(useconds_t time) {
  SleepFor(ToTimespec(Nanos{time} * 1000));
  return 0;
}
int sched_yield() noexcept {
  if (Self() != 0) Runtime::current()->Sleep(1000);
  return 0;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && Runtime::current() != nullptr) {
    const int operation = static_cast<int>(arguments[1]) & FUTEX_CMD_MASK;
    auto* const word = reinterpret_cast<int*>(arguments[0]);
    if (operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET) {
      return WakeSome(word, static_cast<int>(std::min<long>(arguments[2], INT32_MAX)));
    }
    if (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET) {
      if (*word != static_cast<int>(arguments[2])) {
        errno = EAGAIN;
        return -1;
      }
      Nanos deadline = kNever;
      if (const auto* time = reinterpret_cast<const timespec*>(arguments[3]); time != nullptr) {
        const bool absolute = operation == FUTEX_WAIT_BITSET;
        const bool unix_clock = (arguments[1] & FUTEX_CLOCK_REALTIME) != 0;
        deadline = absolute ? Deadline(unix_clock ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time)
                            : Runtime::current()->now() + ToNanos(*time);
      }
      if (WaitOn(word, deadline)) return 0;
      errno = ETIMEDOUT;
      return -1;
    }
  }
  const long result =
      RawSyscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

}  // extern "C"
