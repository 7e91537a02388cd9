#include "os/loop/event_loop.h"

#include <cxxabi.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

#include "core/base/check.h"
#include "os/base/posix_error.h"
#include "os/loop/wait.h"

// Theory of operation. One iteration: sleep in epoll_wait until a descriptor is ready, the earliest
// timer is due or work is posted; read the clock once; call the handlers of the ready descriptors;
// fire the timers that were due at the start; run posted work; run deferred work.
//
// epoll_event.data holds slot and generation. The destructor of a watch frees its slot and raises
// the slot's generation, so an event that the kernel had already reported for it has an old
// generation and is dropped, even if the descriptor number was reused.

namespace elastic::os {
namespace {

constexpr int kEventsPerWait = 128;

std::uint64_t make_token(std::uint32_t slot, std::uint32_t generation) {
  return (std::uint64_t{generation} << 32) | slot;
}

constexpr int kExitInternalError = 70;  // kExitInternal of elastic/agent.h

std::string readable(const char* symbol) {
  int status = 0;
  char* const name = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string text = name == nullptr ? symbol : name;
  std::free(name);
  return text;
}

[[noreturn]] void end_process(const std::type_info& handler) {
  std::string what = "an unknown exception";
  try {
    throw;
  } catch (const std::exception& error) {
    what = readable(typeid(error).name()) + " (" + error.what() + ")";
  } catch (...) {
  }
  std::fprintf(
      stderr,
      "elastic: internal error: %s left the handler %s of an event loop; this process ends "
      "with exit code %d; please report this line\n",
      what.c_str(), readable(handler.name()).c_str(), kExitInternalError);
  std::_Exit(kExitInternalError);  // other threads use what the handler has left half done
}

// Nothing that a handler throws goes further.
template <typename Function>
void call(const Function& function) {
  const std::type_info& type = function.target_type();
  try {
    function();
  } catch (...) {
    end_process(type);
  }
}

}  // namespace

class EventLoop::Wakeup final : public FdHandler {
 public:
  explicit Wakeup(Notifier wakeup) : notifier(std::move(wakeup)) {}
  void on_ready(std::uint32_t) override { notifier.clear(); }

  Notifier notifier;
};

Watch::Watch(Watch&& other) noexcept
    : loop_(std::exchange(other.loop_, nullptr)), fd_(other.fd_), slot_(other.slot_) {}

Watch& Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    fd_ = other.fd_;
    slot_ = other.slot_;
  }
  return *this;
}

void Watch::modify(std::uint32_t events) {
  ELASTIC_CHECK(active());
  epoll_event event{};
  event.events = events;
  event.data.u64 = make_token(slot_, loop_->slots_[slot_].generation);
  ELASTIC_CHECK(::epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_MOD, fd_, &event) == 0);
}

void Watch::reset() {
  if (loop_ == nullptr) return;
  ::epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  EventLoop::Slot& slot = loop_->slots_[slot_];
  slot.handler = nullptr;
  ++slot.generation;
  loop_->free_slots_.push_back(slot_);
  loop_ = nullptr;
}

Timer::~Timer() {
  disarm();
  if (is_firing_) loop_->firing_ = nullptr;
}

void Timer::arm_after(Duration delay) { arm(loop_->now() + delay); }

void Timer::arm(Instant deadline) {
  disarm();
  // One for a time in the past is due after those that are due already, and cannot starve them.
  position_ = loop_->timers_.emplace(std::max(deadline, loop_->now_), this);
  armed_ = true;
}

void Timer::disarm() {
  if (!armed_) return;
  loop_->timers_.erase(position_);
  armed_ = false;
}

StallWatch::StallWatch(EventLoop* loop, std::function<void(const Stall&)> callback)
    : loop_(loop), callback_(std::move(callback)) {
  loop_->stall_watches_.push_back(this);
}

StallWatch::~StallWatch() { std::erase(loop_->stall_watches_, this); }

Result<std::unique_ptr<EventLoop>> EventLoop::create(Clock* clock) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return posix_error("cannot create an epoll instance", errno);
  Result<Notifier> notifier = Notifier::create();
  if (!notifier.ok()) return notifier.status();
  auto wakeup = std::make_unique<Wakeup>(*std::move(notifier));
  std::unique_ptr<EventLoop> loop(new EventLoop(clock, std::move(epoll), std::move(wakeup)));
  Result<Watch> watch = loop->watch(loop->wakeup_->notifier.fd(), EPOLLIN, loop->wakeup_.get());
  if (!watch.ok()) return watch.status();
  loop->wakeup_watch_ = std::move(*watch);
  return loop;
}

EventLoop::EventLoop(Clock* clock, UniqueFd epoll, std::unique_ptr<Wakeup> wakeup)
    : clock_(clock),
      epoll_(std::move(epoll)),
      wakeup_(std::move(wakeup)),
      now_(clock->now()),
      last_turn_(now_) {
  is_turned_ = clock_->adopt(this);
}

EventLoop::~EventLoop() {
  wakeup_watch_.reset();
  clock_->release(this);
}

Result<Watch> EventLoop::watch(int fd, std::uint32_t events, FdHandler* handler) {
  std::uint32_t slot = 0;
  if (free_slots_.empty()) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = make_token(slot, slots_[slot].generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    free_slots_.push_back(slot);
    return posix_error("cannot watch a descriptor", error);
  }
  slots_[slot].handler = handler;
  return Watch(this, fd, slot);
}

void EventLoop::defer(std::function<void()> work) { deferred_.push_back(std::move(work)); }

void EventLoop::post(std::function<void()> work) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = posted_.empty();
    posted_.push_back(std::move(work));
  }
  if (!was_empty) return;  // the first post has woken the loop, which takes all posted work at once
  wakeup_->notifier.notify();
}

void EventLoop::stop() {
  post([this] { stopping_ = true; });
}

void EventLoop::run() {
  stopping_ = false;
  now_ = clock_->now();
  while (!stopping_) {
    const Instant slept = clock_->now();
    iterate(slept, timeout_ms(slept));
  }
}

bool EventLoop::turn() {
  const bool has_acted = iterate(last_turn_, 0);
  last_turn_ = clock_->now();
  return has_acted;
}

Instant EventLoop::next_deadline() const {
  return timers_.empty() ? Instant::max() : timers_.begin()->first;
}

// Each step runs, also after one that had something to do.
bool EventLoop::iterate(Instant slept, int timeout_ms) {
  bool has_acted = dispatch_fds(slept, timeout_ms);
  has_acted |= fire_timers();
  has_acted |= run_posted();
  has_acted |= run_deferred();
  return has_acted;
}

// Rounded up, so that the loop does not spin while a timer is due in less than 1 ms.
int EventLoop::timeout_ms(Instant before) const {
  if (!deferred_.empty()) return 0;
  if (timers_.empty()) return -1;
  const Duration left = timers_.begin()->first - before;
  if (left <= Duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return ms > INT_MAX ? INT_MAX : static_cast<int>(ms);
}

bool EventLoop::dispatch_fds(Instant slept, int timeout_ms) {
  epoll_event events[kEventsPerWait];
  const Instant last = now_;
  const int count = ::epoll_wait(epoll_.get(), events, kEventsPerWait, timeout_ms);
  ELASTIC_CHECK(count >= 0 || errno == EINTR);
  now_ = clock_->now();
  // An interrupted epoll_wait (for example by SIGCONT) does not report which descriptors are ready.
  is_caught_up_ = count >= 0 && count < kEventsPerWait;
  report_stall(last, slept);
  for (int i = 0; i < count; ++i) {
    const auto slot = static_cast<std::uint32_t>(events[i].data.u64);
    const auto generation = static_cast<std::uint32_t>(events[i].data.u64 >> 32);
    if (slots_[slot].generation != generation) continue;  // its watch ended in this iteration
    FdHandler& handler = *slots_[slot].handler;
    const std::type_info& type = typeid(handler);
    try {
      handler.on_ready(events[i].events);
    } catch (...) {
      end_process(type);
    }
  }
  return count > 0;
}

// The previous iteration began at `last`, and its sleep at `slept`.
void EventLoop::report_stall(Instant last, Instant slept) {
  const Duration busy = slept - last;
  Duration overslept{};
  if (!timers_.empty()) {
    overslept = std::max(now_ - std::max(timers_.begin()->first, slept), Duration::zero());
  }
  const Duration late = busy + overslept;
  if (late < kStallMin) return;
  const Stall stall{late, overslept >= kStallMin ? now_ - last : late};
  for (StallWatch* watch : stall_watches_)
    call(std::function<void()>([&] { watch->callback_(stall); }));
}

bool EventLoop::fire_timers() {
  // A timer that a callback arms for a time in the past fires in the next iteration, so that a
  // chain of such timers cannot starve the descriptors: only timers that are due now are counted.
  std::size_t due = 0;
  for (auto it = timers_.begin(); it != timers_.end() && it->first <= now_; ++it) ++due;
  const bool has_acted = due > 0;
  for (; due > 0 && !timers_.empty() && timers_.begin()->first <= now_; --due) {
    Timer* timer = timers_.begin()->second;
    timer->disarm();
    fire(timer);
  }
  return has_acted;
}

// The callback is not in the timer while it runs, because it may destroy the timer.
void EventLoop::fire(Timer* timer) {
  Timer* const outer = std::exchange(firing_, timer);  // not null: in a turn inside of a callback
  std::function<void()> callback = std::move(timer->callback_);
  timer->is_firing_ = true;
  call(callback);
  if (firing_ == timer) {
    timer->callback_ = std::move(callback);
    timer->is_firing_ = false;
  }
  firing_ = outer;
}

bool EventLoop::run_posted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& item : work) call(item);
  return !work.empty();
}

bool EventLoop::run_deferred() {
  std::vector<std::function<void()>> work;
  work.swap(deferred_);
  for (const auto& item : work) call(item);
  return !work.empty();
}

}  // namespace elastic::os
