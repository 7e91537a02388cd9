#pragma once

// A store that keeps the record of a simulated job: one value with compare-and-set. It is slow at
// times, and with faults it cannot be reached, loses answers, reads an old version, or reports a
// conflict that there was not.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/succession/store_keeper.h"
#include "sim/kernel/clock.h"

namespace elastic::test {

class SimStore {
 public:
  // Of KeeperRead, KeeperWrite and KeeperWait.
  using Answer = std::variant<Result<std::optional<StoredState>>, Result<StoredWrite>, bool>;

  SimStore(SimClock* clock, Dice* dice, bool can_watch)
      : clock_(clock), dice_(dice), can_watch_(can_watch) {}
  SimStore(const SimStore&) = delete;
  SimStore& operator=(const SimStore&) = delete;

  void set_faulty(bool is_faulty) { is_faulty_ = is_faulty; }
  std::uint64_t writes() const { return writes_; }

  // One process with its calls, which end with it.
  class Caller : public std::enable_shared_from_this<Caller> {
   public:
    Caller(SimStore* store, std::function<bool()> reaches, std::function<void(Answer)> answered)
        : store_(store), reaches_(std::move(reaches)), answered_(std::move(answered)) {}

    void call(const succession::KeeperCall& call) {
      ++calls_;
      if (const auto* wait = std::get_if<succession::KeeperWait>(&call)) return begin(*wait);
      const Duration latency = store_->draw_latency();
      // The store acts in the middle; the answer takes the rest.
      later(latency / 2, [this, call, latency] {
        Answer answer = act(call);
        later(latency / 2, [this, answer = std::move(answer)] { answered_(answer); });
      });
    }
    void interrupt() { end_wait(); }

   private:
    friend class SimStore;

    void later(Duration wait, std::function<void()> what) {
      store_->clock_->after(wait, [self = weak_from_this(), what = std::move(what)] {
        if (const auto alive = self.lock()) what();
      });
    }
    void begin(const succession::KeeperWait& wait) {
      is_waiting_ = true;
      const auto& now = store_->now_;
      if (!store_->can_watch_ || (now ? std::optional(now->token) : std::nullopt) != wait.token) {
        return end_wait();
      }
      later(wait.until - store_->clock_->now(), [this, number = calls_] {
        if (calls_ == number) end_wait();
      });
    }
    void end_wait() {
      if (!std::exchange(is_waiting_, false)) return;
      later(std::chrono::milliseconds(1), [this] { answered_(store_->can_watch_); });
    }
    Answer act(const succession::KeeperCall& call) {
      if (const auto* write = std::get_if<succession::KeeperWrite>(&call)) {
        return store_->write(*write, reaches_());
      }
      return store_->read(reaches_());
    }

    SimStore* store_;
    std::function<bool()> reaches_;
    std::function<void(Answer)> answered_;
    std::uint64_t calls_ = 0;
    bool is_waiting_ = false;
  };

  std::shared_ptr<Caller> open(std::function<bool()> reaches,
                               std::function<void(Answer)> answered) {
    auto caller = std::make_shared<Caller>(this, std::move(reaches), std::move(answered));
    callers_.push_back(caller);
    return caller;
  }

 private:
  bool may_fail(double chance) { return is_faulty_ && dice_->chance(chance); }
  Duration draw_latency() {
    using std::chrono::milliseconds;
    return dice_->between(Duration(milliseconds(1)), milliseconds(may_fail(0.05) ? 1500 : 8));
  }
  static Status away() { return {StatusCode::kUnavailable, "away"}; }

  Result<std::optional<StoredState>> read(bool is_reached) {
    if (!is_reached || may_fail(0.05)) return away();
    if (before_ && may_fail(0.1)) return before_;
    return now_;
  }
  Result<StoredWrite> write(const succession::KeeperWrite& write, bool is_reached) {
    if (!is_reached || may_fail(0.05)) return away();
    const auto there = now_ ? std::optional(now_->token) : std::nullopt;
    if (there != write.token || may_fail(0.05)) {
      return StoredWrite{false, now_.value_or(StoredState{})};
    }
    before_ = now_;
    now_ = StoredState{write.bytes, std::to_string(++writes_)};
    const StoredWrite done{true, *now_};
    std::erase_if(callers_, [](const auto& one) { return one.expired(); });
    for (const auto& one : callers_) one.lock()->end_wait();
    if (may_fail(0.1)) return away();
    return done;
  }

  SimClock* clock_;
  Dice* dice_;
  const bool can_watch_;
  bool is_faulty_ = false;
  std::optional<StoredState> now_;
  std::optional<StoredState> before_;
  std::uint64_t writes_ = 0;
  std::vector<std::weak_ptr<Caller>> callers_;
};

// The state file of a coordinator. The disk is slow at times, or full.
class SimFile {
 public:
  struct State {
    JobSettings settings;
    std::string bytes;
  };

  SimFile(SimClock* clock, Dice* dice) : clock_(clock), dice_(dice) {}
  SimFile(const SimFile&) = delete;
  SimFile& operator=(const SimFile&) = delete;

  void set_slow(bool is_slow) { is_slow_ = is_slow; }
  void set_full(bool is_full) { is_full_ = is_full; }
  const std::optional<State>& state() const { return now_; }
  // `written`: it is in the file.
  void put(State state, std::function<void()> written) {
    pending_ = std::move(state);
    write_later(std::move(written));
  }
  // The process that writes ends: what it was writing is there, or not.
  void end_writer() {
    ++writers_;
    if (pending_ && !is_full_ && dice_->chance(0.5)) store();
    pending_.reset();
  }
  // Someone puts the version before into its place; false: there is none.
  bool restore_former() {
    if (before_) now_ = before_;
    return before_.has_value();
  }

 private:
  void write_later(std::function<void()> written) {
    using std::chrono::milliseconds;
    const Duration slow = dice_->between(Duration(milliseconds(100)), milliseconds(3000));
    const Duration wait = is_full_   ? milliseconds(500)
                          : is_slow_ ? slow
                                     : dice_->between(Duration(milliseconds(1)), milliseconds(8));
    clock_->after(wait, [this, writer = writers_, written = std::move(written)] {
      if (writer != writers_) return;
      if (is_full_) return write_later(written);
      store();
      written();
    });
  }
  void store() { before_ = std::exchange(now_, std::exchange(pending_, std::nullopt)); }

  SimClock* clock_;
  Dice* dice_;
  bool is_slow_ = false;
  bool is_full_ = false;
  std::uint64_t writers_ = 0;
  std::optional<State> pending_;
  std::optional<State> now_;
  std::optional<State> before_;
};

}  // namespace elastic::test
