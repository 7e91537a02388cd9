#include "sim/sim_shared.h"

#include <utility>

namespace elastic::test {

using namespace std::chrono_literals;

namespace {
constexpr Duration kPoll = 400ms;
}

class SimShared::Replica {
 public:
  Replica(SimShared* store, SimAgent* agent, std::shared_ptr<SimLink> link)
      : store_(store),
        agent_(agent),
        link_(std::move(link)),
        machine_(store->settings_, store->clock_->now(), 0s),
        last_contact_(store->clock_->now()) {
    link_->on_message[static_cast<int>(Side::kServer)] = [this](const SimLink::Message& message) {
      hear(std::get<RendezvousEvent>(message));
    };
    poll();
  }

  bool serves(const SimAgent* agent) const { return agent_ == agent; }

 private:
  // An event that was said, with the answer that waits for the write to succeed.
  struct Step {
    RendezvousChecker::Snapshot was;
    RendezvousEvent event;
    std::vector<RendezvousAction> actions;
    RendezvousChecker::Snapshot is;
  };

  Instant now() const { return store_->clock_->now(); }
  bool is_gone() const {
    return agent_->fate() == "crashed" || (!agent_->is_alive() && unsaid_.empty());
  }

  void hear(const RendezvousEvent& event) {
    if (std::holds_alternative<rdzv::Heartbeat>(event)) {
      is_beat_due_ = true;
    } else {
      unsaid_.push_back(event);
    }
    wake(0s);
  }

  void poll() {
    if (is_gone()) return;
    wake(0s);
    store_->clock_->after(kPoll, [this] { poll(); });
  }

  void wake(Duration wait) {
    if (is_busy_) return;
    is_busy_ = true;
    later(wait, [this] { look(); });
  }

  // A pause of the agent's process is a pause of this too.
  void later(Duration wait, std::function<void()> what) {
    store_->clock_->after(wait, [this, what = std::move(what)] {
      if (is_gone()) return;
      if (agent_->is_paused()) {
        later(100ms, what);
      } else {
        what();
      }
    });
  }

  Duration delay() { return store_->dice_->between(Duration(100us), Duration(3ms)); }

  void retry(Duration at_most) {
    is_busy_ = false;
    wake(store_->dice_->between(Duration(1ms), at_most));
  }

  void look() {
    if (!agent_->path()->is_open()) {
      retry(500ms);
      return;
    }
    // While the store could not be read, nobody's silence means anything.
    const Duration gap = now() - last_contact_;
    std::vector<RendezvousAction> none;
    if (gap > kPoll * 2) machine_.step(rdzv::ClockGap{gap}, now(), &none);
    last_contact_ = now();
    if (!store_->bytes_.empty() && store_->token_ != loaded_) {
      const Status status = machine_.load(store_->bytes_, now());
      if (!status.ok()) store_->fault_ = "load: " + std::string(status.message());
    }
    loaded_ = store_->token_;
    learn();

    std::vector<RendezvousEvent> events(unsaid_.begin(), unsaid_.end());
    if (is_beat_due_ && has_joined_) events.push_back(rdzv::Heartbeat{agent_->info().id});
    const auto keeper = machine_.timekeeper(now());
    const auto due = machine_.next_deadline();
    if ((!keeper || *keeper == agent_->info().id) && due && *due <= now()) {
      events.push_back(rdzv::Tick{});
    }
    if (events.empty()) {
      is_busy_ = false;
      return;
    }
    std::vector<Step> steps;
    for (const RendezvousEvent& event : events) {
      RendezvousChecker::Snapshot was(machine_);
      std::vector<RendezvousAction> actions;
      machine_.step(event, now(), &actions);
      steps.push_back(
          {std::move(was), event, std::move(actions), RendezvousChecker::Snapshot(machine_)});
    }
    write(unsaid_.size(), loaded_, std::move(steps));
  }

  void write(std::size_t said, std::uint64_t token, std::vector<Step> steps) {
    later(delay(), [this, said, token, steps = std::move(steps)] {
      if (token != store_->token_ || !agent_->path()->is_open()) {
        loaded_ = ~0ULL;  // what was tried here is void
        retry(30ms);
        return;
      }
      store_->bytes_ = machine_.encode();
      loaded_ = ++store_->token_;
      const Status status = machine_.load(store_->bytes_, now());
      if (!status.ok()) store_->fault_ = "load of its own bytes: " + std::string(status.message());
      is_beat_due_ = false;
      for (const Step& step : steps) {
        ++store_->steps_;
        store_->checker_.observe(step.was, step.event, step.actions, step.is);
        store_->note_rounds();
        if (std::holds_alternative<rdzv::Join>(step.event) ||
            std::holds_alternative<rdzv::Resume>(step.event)) {
          has_joined_ = true;
          told_.clear();
        }
        if (std::holds_alternative<rdzv::Leave>(step.event)) has_joined_ = false;
        for (const RendezvousAction& action : step.actions) {
          if (std::visit([](const auto& one) { return one.to; }, action) == agent_->info().id) {
            tell(action);
          }
        }
      }
      unsaid_.erase(unsaid_.begin(), unsaid_.begin() + static_cast<std::ptrdiff_t>(said));
      learn();
      is_busy_ = false;
      if (!unsaid_.empty()) wake(delay());
    });
  }

  void learn() {
    if (!has_joined_) return;
    std::vector<RendezvousAction> actions;
    machine_.remind(agent_->info().id, heard_, now(), &actions);
    for (const RendezvousAction& action : actions) tell(action);
  }

  // Tells the agent what it was not told last.
  void tell(const RendezvousAction& action) {
    if (std::holds_alternative<rdzv::Resumed>(action)) return;
    std::string what = name_of(action);
    if (const auto* round = std::get_if<rdzv::Round>(&action)) {
      if (round->record->round <= heard_) return;
      heard_ = round->record->round;
    } else if (const auto* restart = std::get_if<rdzv::Restart>(&action)) {
      what += std::to_string(restart->round);
    }
    if (what == told_) return;
    told_ = what;
    link_->send(Side::kServer, action);
  }

  SimShared* store_;
  SimAgent* agent_;
  std::shared_ptr<SimLink> link_;
  Rendezvous machine_;
  Instant last_contact_;
  std::deque<RendezvousEvent> unsaid_;
  bool is_beat_due_ = false;
  bool is_busy_ = false;
  bool has_joined_ = false;
  std::uint64_t loaded_ = 0;
  std::uint64_t heard_ = 0;
  std::string told_;
};

SimShared::SimShared(SimClock* clock, Dice* dice, JobSettings settings, Note note)
    : SimAuthority(clock, std::move(settings), std::move(note)), dice_(dice) {
  lives_ = 1;
}

SimShared::~SimShared() = default;

std::shared_ptr<SimLink> SimShared::connect(SimAgent* agent) {
  // Agent and replica live in one process; only the way to the store can be blocked.
  auto path = std::make_shared<SimPath>();
  path->delay_min = path->delay_max = Duration::zero();
  auto link = std::make_shared<SimLink>(clock_, dice_, path);
  replicas_.push_back(std::make_unique<Replica>(this, agent, link));
  return link;
}

std::string SimShared::describe() const {
  Rendezvous machine(settings_, clock_->now(), 0s);
  if (!bytes_.empty() && !machine.load(bytes_, clock_->now()).ok()) return "the state is damaged";
  return machine.describe(clock_->now());
}

std::uint32_t SimShared::generation() const {
  Rendezvous machine(settings_, clock_->now(), 0s);
  if (!bytes_.empty() && !machine.load(bytes_, clock_->now()).ok()) return 0;
  return machine.record().generation;
}

}  // namespace elastic::test
