// Runs the succession over a store, seed by seed. A failure prints the line that replays it with a
// trace.
//
// The world is a job whose record is kept by a store: processes with a StoreKeeper each, one store
// with faults, and links between the processes that break. Their coordinators propose numbered
// contents, each the successor of the one that it continues. The scenes:
//
//   start      all processes start at once
//   lost       the coordinator's process is killed
//   hand-over  it ends in order
//   partition  it is cut off from the other processes, and reaches the store
//   alone      it is cut off from the store
//   faults     all of these, and a store that loses answers and reads old versions

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/succession/job_record.h"
#include "core/succession/store_keeper.h"
#include "sim/kernel/seeds.h"

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

enum class StoreScene : std::uint8_t { kStart, kLost, kHandOver, kPartition, kAlone, kFaults };
struct NamedScene {
  std::string_view name;
  StoreScene scene;
};
constexpr NamedScene kScenes[] = {
    {"start", StoreScene::kStart},        {"lost", StoreScene::kLost},
    {"hand-over", StoreScene::kHandOver}, {"partition", StoreScene::kPartition},
    {"alone", StoreScene::kAlone},        {"faults", StoreScene::kFaults}};

std::uint64_t number_of(const JobRecord& record) {
  return record.state.empty() ? 0 : std::stoull(record.state);
}

class StoreWorld : public SimWorld {
 public:
  StoreWorld(StoreScene scene, std::uint64_t seed, bool is_traced)
      : SimWorld(seed, is_traced), scene_(scene) {
    can_watch_ = dice_.chance(0.6);
    has_faults_ = scene == StoreScene::kFaults;
    const int count = dice_.between(2, 5);
    for (int i = 0; i < count; ++i) start_process();
  }

  SimReport play() {
    if (scene_ == StoreScene::kFaults) {
      for (int i = dice_.between(3, 12); i > 0; --i) {
        clock_.after(dice_.between(0s, kFaultTime), [this] { any_fault(); });
      }
    } else if (scene_ != StoreScene::kStart) {
      clock_.after(3s, [this] { fault(scene_); });
    }
    run(scene_ == StoreScene::kStart ? 0s : kFaultTime);
    heal();
    last_fault_ = clock_.now();
    if (!run_until(kRecoveryMax, [this] { return is_settled(); })) {
      violate("no common coordinator " + describe());
    }
    report_.recovery = clock_.now() - last_fault_;
    // It stays: no other one begins without need. A hand-over may still be under way.
    run(2s);
    const std::uint64_t before = report_.counts["coordinators"];
    run(5s);
    if (report_.counts["coordinators"] != before) violate("another coordinator began without need");
    return std::move(report_);
  }

 private:
  struct Service {
    std::uint64_t term = 0;
    std::string address;
    std::optional<Incumbent> informed;
    std::uint64_t last = 0;      // the number of the content that was proposed last
    std::uint64_t in_force = 0;  // of the last one in force
    std::optional<std::uint64_t> open;
    std::uint64_t proposals = 0;
  };
  struct Process {
    int index = 0;
    bool is_alive = true;
    bool is_reaching_store = true;
    bool is_ending = false;
    std::unique_ptr<StoreKeeper> machine;
    std::optional<Service> service;
    std::optional<int> session;  // the process with whose service it is open
    Instant broken_at = Instant::max();
    bool is_connecting = false;
    std::uint64_t calls = 0;  // a wait of an earlier number has ended
    bool is_waiting = false;
    std::uint64_t received = 0;  // the number of the content that its node was sent last
    Alarm alarm;

    std::string name() const { return "p" + std::to_string(index); }
  };

  void start_process() {
    auto process = std::make_unique<Process>();
    process->index = static_cast<int>(processes_.size());
    process->machine = std::make_unique<StoreKeeper>(
        StoreKeeper::Settings{.store = "memory",
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
    if (const auto next = process.machine->next_deadline()) {
      process.alarm.set(&clock_, *next, [this, &process] { feed(process, Tick{}); });
    }
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

  void on(Process& process, const Log& line) { trace(process.name() + " " + line.message); }
  void on(Process& process, const KeeperFault& fault) {
    violate(process.name() + ": " + fault.message);
  }
  void on(Process& process, const Expired& expired) {
    violate(process.name() + ": " + expired.reason);
  }

  void on(Process& process, const StartCoordinator& start) {
    count("coordinators");
    newest_term_ = std::max(newest_term_, start.term);
    const std::uint64_t number = number_of(start.record);
    trace(process.name() + " coordinates, term " + std::to_string(start.term) + ", content " +
          std::to_string(number));
    if (number < newest_) {
      violate("term " + std::to_string(start.term) + " continues content " +
              std::to_string(number) + ", and " + std::to_string(newest_) + " was in force");
    }
    if (process.service) violate("a second coordinator in one process");
    process.service = Service{.term = start.term,
                              .address = {},
                              .informed = {},
                              .last = number,
                              .in_force = number,
                              .open = {}};
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
    count("in force");
    newest_ = std::max(newest_, number);
    service.in_force = number;
    for (const auto& one : processes_) {
      const bool has_session = one->is_alive && one->session == process.index;
      if (has_session && reaches(process.index, one->index)) deliver(*one, number);
    }
    const auto [found, is_new] = decided_.try_emplace(number, service.term);
    if (!is_new) {
      violate("content " + std::to_string(number) + " of terms " + std::to_string(found->second) +
              " and " + std::to_string(service.term));
    }
  }

  // What a node is sent never goes back: when it is in force, and when its session opens.
  void deliver(Process& to, std::uint64_t number) {
    if (number < to.received) {
      violate("I5: " + to.name() + " is sent content " + std::to_string(number) + " after " +
              std::to_string(to.received));
    }
    to.received = number;
  }

  void on(Process& process, const StopCoordinator& stop) {
    trace(process.name() + " stops: " + stop.reason);
    process.service.reset();
  }
  void on(Process& process, const Inform& inform) {
    if (process.service) process.service->informed = inform.incumbent;
  }
  void on(Process& process, const Follow& follow) {
    trace(process.name() + " follows " + follow.incumbent.address);
    process.session.reset();
    connect(process);
  }

  // ---- Sessions.

  bool reaches(std::size_t a, std::size_t b) const { return !cuts_.has_any(a, b); }

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
      // A coordinator learns from the hello that it was replaced (CoordinatorJob::note_term).
      const auto& known = process.machine->incumbent();
      if (known && known->term > other->service->term) {
        return feed(*other, LaterTermSeen{known->term});
      }
      process.session = other->index;
      process.broken_at = Instant::max();
      deliver(process, other->service->in_force);
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

  void fault(StoreScene kind) {
    Process* const one = coordinator();
    if (one == nullptr) return;
    switch (kind) {
      case StoreScene::kLost: return kill(*one);
      case StoreScene::kHandOver:
        if (one->is_ending || num_alive() < 2) return;
        trace(one->name() + " resigns");
        one->is_ending = true;
        feed(*one, Resign{});
        clock_.after(1500ms, [this, one] { kill(*one); });
        return;
      case StoreScene::kPartition:
        trace(one->name() + " is cut off from the others");
        for (const auto& other : processes_) {
          if (other.get() != one) cuts_.cut(one->index, other->index);
        }
        return;
      case StoreScene::kAlone:
        trace(one->name() + " is cut off from the store");
        one->is_reaching_store = false;
        return;
      case StoreScene::kStart:
      case StoreScene::kFaults: return;
    }
  }

  void kill(Process& process) {
    if (!process.is_alive || (!process.is_ending && num_alive() < 2)) return;
    trace(process.name() + " is killed");
    process.is_alive = false;
    process.service.reset();
  }

  void any_fault() {
    switch (dice_.between(0, 6)) {
      case 0: return fault(StoreScene::kLost);
      case 1: return fault(StoreScene::kHandOver);
      case 2: return fault(StoreScene::kPartition);
      case 3: return fault(StoreScene::kAlone);
      case 4: return start_process();
      case 5: return heal();
      default: {
        const int last = static_cast<int>(processes_.size()) - 1;
        const int from = dice_.between(0, last);
        cuts_.cut(from, dice_.between(0, last));
      }
    }
  }

  void heal() {
    cuts_.heal();
    for (const auto& one : processes_) one->is_reaching_store = true;
  }

  // One that was cut off may not know yet that it was replaced.
  bool is_settled() {
    const Process* const one = coordinator();
    if (one == nullptr || one->service->term != newest_term_) return false;
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
      text += one->name() + (one->is_alive ? "" : " dead") + (one->service ? " serves" : "") +
              " session " + (one->session ? std::to_string(*one->session) : "-") + " " +
              one->machine->explain() + "; ";
    }
    return text;
  }

  const StoreScene scene_;
  bool can_watch_ = false;
  bool has_faults_ = false;
  Instant last_fault_ = Instant::max();
  std::vector<std::unique_ptr<Process>> processes_;
  Cuts cuts_;
  std::optional<StoredState> stored_;
  std::optional<StoredState> before_;
  std::uint64_t writes_ = 0;
  std::map<std::uint64_t, std::uint64_t> decided_;  // the term of each content in force
  std::uint64_t newest_ = 0;
  std::uint64_t newest_term_ = 0;
};

SimReport simulate_store(const std::string& scene, std::uint64_t seed, bool is_traced) {
  return StoreWorld(scene_named(kScenes, scene).scene, seed, is_traced).play();
}

constexpr Simulation kStoreKeeper = {"StoreKeeperSim", simulate_store};

TEST(StoreKeeperSim, OneOfThoseThatStartTogetherCoordinates) {
  const Totals total = sweep(kStoreKeeper, "start", 300);
  EXPECT_EQ(total["coordinators"], total.seeds);
  EXPECT_LT(total.longest, 500ms);
}
TEST(StoreKeeperSim, AnotherProcessContinuesTheJobOfALostOne) {
  const Totals total = sweep(kStoreKeeper, "lost", 300);
  EXPECT_EQ(total["coordinators"], 2 * total.seeds);
}
TEST(StoreKeeperSim, AHandOverTakesOneClaim) {
  const Totals total = sweep(kStoreKeeper, "hand-over", 300);
  EXPECT_EQ(total["coordinators"], 2 * total.seeds);
}
TEST(StoreKeeperSim, ACoordinatorThatAnswersInTheRecordContinues) {
  const Totals total = sweep(kStoreKeeper, "partition", 300);
  EXPECT_EQ(total["coordinators"], total.seeds);
}
TEST(StoreKeeperSim, ACoordinatorWithoutTheStoreKeepsItsSessions) {
  const Totals total = sweep(kStoreKeeper, "alone", 300);
  EXPECT_EQ(total["coordinators"], total.seeds);
}
TEST(StoreKeeperSim, FaultsBreakNoPromise) {
  const Totals total = sweep(kStoreKeeper, "faults", 1000);
  EXPECT_GT(total["coordinators"], total.seeds);
  EXPECT_GT(total["in force"], 10 * total.seeds);
}
TEST(StoreKeeperSim, OneSeedIsOneRun) { expect_same_run(kStoreKeeper, "faults"); }
TEST(StoreKeeperSim, Replay) { replay(kStoreKeeper); }

}  // namespace
}  // namespace elastic::test
