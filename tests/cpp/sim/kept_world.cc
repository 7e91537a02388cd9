#include "sim/kept_world.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "core/succession/job_record.h"
#include "core/succession/kept_machine.h"
#include "sim/sim_clock.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;
using namespace elastic::succession;

constexpr Duration kNodeTimeout = 2s;
constexpr Duration kReconnectGrace = 50ms;
constexpr Duration kFaultTime = 20s;
constexpr Duration kRecoveryMax = 15s;

reg::Content numbered(std::uint64_t number) {
  JobRecord record;
  record.job_id = "job";
  record.state = std::to_string(number);
  return {.generation = 1, .round = number, .is_result = false, .bytes = encode_record(record)};
}

std::uint64_t number_of(const JobRecord& record) {
  return record.state.empty() ? 0 : std::stoull(record.state);
}

class KeptWorld {
 public:
  KeptWorld(KeptScene scene, std::uint64_t seed, bool is_traced)
      : scene_(scene), is_traced_(is_traced), dice_(seed), clock_(seed) {
    can_watch_ = dice_.chance(0.6);
    has_faults_ = scene == KeptScene::kFaults;
    const int count = dice_.between(2, 5);
    for (int i = 0; i < count; ++i) start_process();
  }

  KeptReport run() {
    const Instant begin = clock_.now();
    if (scene_ == KeptScene::kFaults) {
      for (int i = dice_.between(3, 12); i > 0; --i) {
        clock_.after(dice_.between(0s, kFaultTime), [this] { any_fault(); });
      }
    } else if (scene_ != KeptScene::kStart) {
      clock_.after(3s, [this] { fault(scene_); });
    }
    const Instant end = begin + (scene_ == KeptScene::kStart ? 0s : kFaultTime);
    run_until(end);
    heal();
    last_fault_ = clock_.now();
    while (!is_settled() && clock_.now() < last_fault_ + kRecoveryMax) {
      if (!clock_.run_next(last_fault_ + kRecoveryMax)) break;
    }
    report_.recovery = clock_.now() - last_fault_;
    if (!is_settled()) violate("no common coordinator " + describe());
    // It stays: nobody takes an office without need. A hand-over may still be under way.
    run_until(clock_.now() + 2s);
    const std::uint64_t offices = report_.offices;
    run_until(clock_.now() + 5s);
    if (report_.offices != offices) violate("an office was taken without need");
    return std::move(report_);
  }

 private:
  struct Service {
    std::uint64_t term = 0;
    std::string address;
    std::optional<Incumbent> informed;
    std::uint64_t last = 0;  // the number of the content that was proposed last
    std::optional<std::uint64_t> open;
    std::uint64_t proposals = 0;
  };
  struct Process {
    int index = 0;
    bool is_alive = true;
    bool is_reaching_store = true;
    bool is_ending = false;
    std::unique_ptr<KeptMachine> machine;
    std::optional<Service> service;
    std::optional<int> session;  // the process with whose service it is open
    Instant broken_at = Instant::max();
    bool is_closed = false;
    bool is_connecting = false;
    std::uint64_t calls = 0;  // a wait of an earlier number has ended
    bool is_waiting = false;
    std::optional<Instant> timer;
  };

  void violate(const std::string& what) { report_.violations.push_back(what); }
  void trace(const Process& process, const std::string& what) const {
    if (!is_traced_) return;
    std::cerr << to_milliseconds(clock_.now().time_since_epoch()) << " p" << process.index << " "
              << what << "\n";
  }
  static std::int64_t to_milliseconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  }

  void start_process() {
    auto process = std::make_unique<Process>();
    process->index = static_cast<int>(processes_.size());
    process->machine = std::make_unique<KeptMachine>(
        KeptMachine::Settings{.store = "memory",
                              .self = {1, static_cast<std::uint64_t>(process->index) + 1},
                              .node_timeout = kNodeTimeout},
        dice_.next(), clock_.now());
    process->machine->set_rank(process->index);
    processes_.push_back(std::move(process));
    Process& started = *processes_.back();
    clock_.after(dice_.between(0ms, 5ms), [this, &started] { after_step(started); });
    clock_.after(10ms, [this, &started] { watch_session(started); });
  }

  void feed(Process& process, const Event& event) {
    if (!process.is_alive) return;
    std::vector<Action> actions;
    process.machine->step(event, clock_.now(), &actions);
    execute(process, std::move(actions));
  }

  void execute(Process& process, std::vector<Action> actions) {
    for (Action& action : actions) {
      std::visit([&](auto& one) { on(process, one); }, action);
    }
    after_step(process);
  }

  void after_step(Process& process) {
    if (!process.is_alive) return;
    while (auto call = process.machine->next_call()) begin_call(process, *call);
    if (process.machine->must_interrupt() && process.is_waiting) end_wait(process);
    const auto next = process.machine->next_deadline();
    if (!next || process.timer == next) return;
    process.timer = next;
    clock_.at(*next, [this, &process, at = *next] {
      if (process.timer != at) return;
      process.timer.reset();
      feed(process, Tick{});
    });
  }

  // ---- The store.

  bool may_fail(double chance) {
    return has_faults_ && clock_.now() < last_fault_ && dice_.chance(chance);
  }

  void begin_call(Process& process, const KeeperCall& call) {
    const std::uint64_t number = ++process.calls;
    if (const auto* wait = std::get_if<KeeperWait>(&call)) {
      process.is_waiting = true;
      if (!can_watch_ || (stored_ ? std::optional(stored_->token) : std::nullopt) != wait->token) {
        return end_wait(process);
      }
      clock_.at(wait->until, [this, &process, number] {
        if (process.calls == number && process.is_waiting) end_wait(process);
      });
      return;
    }
    const Duration latency = dice_.between(1ms, may_fail(0.05) ? 1500ms : 8ms);
    // The store acts in the middle; the answer takes the rest.
    clock_.after(latency / 2, [this, &process, call, latency] {
      if (const auto* write = std::get_if<KeeperWrite>(&call)) {
        auto answer = write_store(process, *write);
        clock_.after(latency / 2, [this, &process, answer = std::move(answer)] {
          answered(process,
                   [&](auto* actions) { process.machine->written(answer, clock_.now(), actions); });
        });
      } else {
        auto answer = read_store(process);
        clock_.after(latency / 2, [this, &process, answer = std::move(answer)] {
          answered(process,
                   [&](auto* actions) { process.machine->read(answer, clock_.now(), actions); });
        });
      }
    });
  }

  void end_wait(Process& process) {
    process.is_waiting = false;
    clock_.after(1ms, [this, &process] {
      answered(process,
               [&](auto* actions) { process.machine->waited(can_watch_, clock_.now(), actions); });
    });
  }

  template <typename Feed>
  void answered(Process& process, Feed feed_answer) {
    if (!process.is_alive) return;
    std::vector<Action> actions;
    feed_answer(&actions);
    execute(process, std::move(actions));
  }

  static Status away() { return {StatusCode::kUnavailable, "away"}; }

  Result<std::optional<StoredState>> read_store(const Process& process) {
    if (!process.is_reaching_store || may_fail(0.05)) return away();
    if (before_ && may_fail(0.1)) return before_;
    return stored_;
  }

  Result<StoredWrite> write_store(const Process& process, const KeeperWrite& write) {
    if (!process.is_reaching_store || may_fail(0.05)) return away();
    const auto there = stored_ ? std::optional(stored_->token) : std::nullopt;
    if (there != write.token || may_fail(0.05)) {
      return StoredWrite{false, stored_.value_or(StoredState{})};
    }
    before_ = stored_;
    stored_ = StoredState{write.bytes, std::to_string(++writes_)};
    const StoredWrite done{true, *stored_};
    for (const auto& other : processes_) {
      if (other->is_waiting) end_wait(*other);
    }
    if (may_fail(0.1)) return away();
    return done;
  }

  // ---- Actions.

  template <typename Other>
  void on(Process&, const Other&) {}

  void on(Process& process, const Log& line) { trace(process, line.message); }
  void on(Process& process, const KeeperFault& fault) {
    violate("p" + std::to_string(process.index) + ": " + fault.message);
  }
  void on(Process& process, const Expired& expired) {
    violate("p" + std::to_string(process.index) + ": " + expired.reason);
  }

  void on(Process& process, const StartCoordinator& start) {
    ++report_.offices;
    const std::uint64_t number = number_of(start.record);
    trace(process, "takes office, term " + std::to_string(start.term) + ", content " +
                       std::to_string(number));
    if (number < newest_) {
      violate("term " + std::to_string(start.term) + " continues content " +
              std::to_string(number) + ", and " + std::to_string(newest_) + " was in force");
    }
    if (process.service) violate("a second coordinator in one process");
    process.service =
        Service{.term = start.term, .address = {}, .informed = {}, .last = number, .open = {}};
    clock_.after(dice_.between(1ms, 5ms), [this, &process, term = start.term] {
      if (!process.service || process.service->term != term) return;
      process.service->address =
          "10.0.0." + std::to_string(process.index) + ":" + std::to_string(20000 + term);
      feed(process, CoordinatorStarted{process.service->address});
      propose(process);
    });
  }

  void propose(Process& process) {
    if (!process.is_alive || !process.service) return;
    if (!process.service->open) {
      process.service->open = ++process.service->last;
      feed(process, Propose{++process.service->proposals, numbered(process.service->last)});
    }
    const std::uint64_t term = process.service ? process.service->term : 0;
    clock_.after(dice_.between(20ms, 400ms), [this, &process, term] {
      if (process.service && process.service->term == term) propose(process);
    });
  }

  void on(Process& process, const InForce& action) {
    Service& service = *process.service;
    if (!service.open || service.proposals != action.number) return violate("a wrong InForce");
    const std::uint64_t number = *std::exchange(service.open, std::nullopt);
    ++report_.in_force;
    newest_ = std::max(newest_, number);
    const auto [found, is_new] = decided_.try_emplace(number, service.term);
    if (!is_new) {
      violate("content " + std::to_string(number) + " of terms " + std::to_string(found->second) +
              " and " + std::to_string(service.term));
    }
  }

  void on(Process& process, const StopCoordinator& stop) {
    trace(process, "stops: " + stop.reason);
    process.service.reset();
  }
  void on(Process& process, const Inform& inform) {
    if (process.service) process.service->informed = inform.incumbent;
  }
  void on(Process& process, const Follow& follow) {
    trace(process, "follows " + follow.incumbent.address);
    process.session.reset();
    process.is_closed = false;
    connect(process);
  }

  // ---- Sessions.

  bool reaches(int a, int b) const { return !cut_.contains({a, b}) && !cut_.contains({b, a}); }

  void connect(Process& process) {
    if (std::exchange(process.is_connecting, true)) return;
    clock_.after(dice_.between(1ms, 10ms), [this, &process] {
      process.is_connecting = false;
      try_connect(process);
    });
  }

  void try_connect(Process& process) {
    const std::string address = process.machine->address();
    if (!process.is_alive || process.session || address.empty()) return;
    for (const auto& other : processes_) {
      const std::string host = "10.0.0." + std::to_string(other->index) + ":";
      if (!address.starts_with(host) || !reaches(process.index, other->index)) continue;
      const bool is_serving = other->is_alive && other->service && other->service->informed &&
                              other->service->address == address;
      if (!is_serving) return feed(process, Unreachable{address, true});
      process.session = other->index;
      process.is_closed = false;
      process.broken_at = Instant::max();
      return feed(process, Informed{*other->service->informed});
    }
  }

  void watch_session(Process& process) {
    if (!process.is_alive) return;
    clock_.after(10ms, [this, &process] { watch_session(process); });
    if (!process.session) return connect(process);
    const Process& other = *processes_[static_cast<std::size_t>(*process.session)];
    const bool is_there = other.is_alive && other.service && other.service->informed;
    if (is_there && reaches(process.index, other.index)) {
      process.broken_at = Instant::max();
      return;
    }
    if (process.broken_at == Instant::max()) process.broken_at = clock_.now();
    const bool is_silent = !reaches(process.index, other.index);
    if (!is_silent && dice_.chance(0.7)) {
      process.session.reset();
      process.broken_at = Instant::max();
      return feed(process, Unreachable{process.machine->address(), true, true});
    }
    if (clock_.now() < process.broken_at + (is_silent ? kNodeTimeout : kReconnectGrace)) return;
    process.session.reset();
    process.broken_at = Instant::max();
    feed(process, IncumbentLost{});
    connect(process);
  }

  // ---- Faults.

  Process* coordinator() {
    for (const auto& one : processes_) {
      if (one->is_alive && one->service && one->service->informed) return one.get();
    }
    return nullptr;
  }

  int num_alive() const {
    return static_cast<int>(
        std::count_if(processes_.begin(), processes_.end(),
                      [](const auto& one) { return one->is_alive && !one->is_ending; }));
  }

  void fault(KeptScene kind) {
    Process* const one = coordinator();
    if (one == nullptr) return;
    switch (kind) {
      case KeptScene::kLost: return kill(*one);
      case KeptScene::kHandOver:
        if (one->is_ending || num_alive() < 2) return;
        trace(*one, "resigns");
        one->is_ending = true;
        feed(*one, Resign{});
        clock_.after(1500ms, [this, one] { kill(*one); });
        return;
      case KeptScene::kPartition:
        trace(*one, "is cut off from the others");
        for (const auto& other : processes_) {
          if (other.get() != one) cut_.insert({one->index, other->index});
        }
        return;
      case KeptScene::kAlone:
        trace(*one, "is cut off from the store");
        one->is_reaching_store = false;
        return;
      case KeptScene::kStart:
      case KeptScene::kFaults: return;
    }
  }

  void kill(Process& process) {
    if (!process.is_alive || (!process.is_ending && num_alive() < 2)) return;
    trace(process, "is killed");
    process.is_alive = false;
    process.service.reset();
  }

  void any_fault() {
    switch (dice_.between(0, 6)) {
      case 0: return fault(KeptScene::kLost);
      case 1: return fault(KeptScene::kHandOver);
      case 2: return fault(KeptScene::kPartition);
      case 3: return fault(KeptScene::kAlone);
      case 4: return start_process();
      case 5: return heal();
      default: {
        const int last = static_cast<int>(processes_.size()) - 1;
        cut_.insert({dice_.between(0, last), dice_.between(0, last)});
      }
    }
  }

  void heal() {
    cut_.clear();
    for (const auto& one : processes_) one->is_reaching_store = true;
  }

  bool is_settled() {
    const Process* const one = coordinator();
    if (one == nullptr) return false;
    for (const auto& other : processes_) {
      if (other->is_alive && other.get() != one &&
          (other->session != one->index || other->service)) {
        return false;
      }
    }
    return one->session == one->index;
  }

  std::string describe() {
    std::string text;
    for (const auto& one : processes_) {
      text += "p" + std::to_string(one->index) + (one->is_alive ? "" : " dead") +
              (one->service ? " serves" : "") + " session " +
              (one->session ? std::to_string(*one->session) : "-") + " " + one->machine->explain() +
              "; ";
    }
    return text;
  }

  void run_until(Instant end) {
    while (clock_.run_next(end)) {
    }
  }

  const KeptScene scene_;
  const bool is_traced_;
  Dice dice_;
  SimClock clock_;
  bool can_watch_ = false;
  bool has_faults_ = false;
  Instant last_fault_ = Instant::max();
  std::vector<std::unique_ptr<Process>> processes_;
  std::set<std::pair<int, int>> cut_;
  std::optional<StoredState> stored_;
  std::optional<StoredState> before_;
  std::uint64_t writes_ = 0;
  std::map<std::uint64_t, std::uint64_t> decided_;  // the term of each content in force
  std::uint64_t newest_ = 0;
  KeptReport report_;
};

}  // namespace

KeptReport simulate_kept(KeptScene scene, std::uint64_t seed, bool is_traced) {
  return KeptWorld(scene, seed, is_traced).run();
}

}  // namespace elastic::test
