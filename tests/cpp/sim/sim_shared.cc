#include "sim/sim_shared.h"

#include <utility>

#include "core/rendezvous/shared_state_machine.h"

namespace elastic::test {

using namespace std::chrono_literals;

class SimShared::Replica {
 public:
  Replica(SimShared* store, SimAgent* agent, std::shared_ptr<SimLink> link)
      : store_(store),
        agent_(agent),
        link_(std::move(link)),
        member_(store->settings_, store->dice_->next(), store->clock_->now()) {
    link_->on_message[static_cast<int>(Side::kServer)] = [this](const SimLink::Message& message) {
      receive(std::get<RendezvousEvent>(message));
    };
    member_.watch_steps([this](const Rendezvous& machine, const RendezvousEvent* event,
                               const std::vector<RendezvousAction>& actions) {
      if (event == nullptr) tried_.clear();
      tried_.push_back(
          {RendezvousChecker::Snapshot(machine), event ? *event : rdzv::Tick{}, actions});
    });
    poll_state(now());
  }

 private:
  // The machine after a step, and what the step was; the first is how it was before all steps.
  struct Step {
    RendezvousChecker::Snapshot is;
    RendezvousEvent event;
    std::vector<RendezvousAction> actions;
  };

  Instant now() const { return store_->clock_->now(); }
  bool is_gone() const {
    return is_lost_ || agent_->fate() == "crashed" ||
           (!agent_->is_alive() && member_.has_sent_all());
  }
  Duration delay() { return store_->dice_->between(Duration(100us), Duration(3ms)); }

  void receive(const RendezvousEvent& event) {
    if (std::holds_alternative<rdzv::Heartbeat>(event)) return;  // the member beats by itself
    member_.send(event);
    if (!is_writing_) poll_state(now());
  }

  // The next look; one that was planned before is not done.
  void poll_state(Instant when) {
    const std::uint64_t schedule = ++plan_;
    later(std::max(when - now(), Duration(1us)), [this, schedule] {
      if (schedule == plan_) poll_state();
    });
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

  void poll_state() {
    if (!agent_->path()->is_open()) {
      if (!member_.read_failed(blocked(), now()).ok()) {
        expire_node();
        return;
      }
      poll_state(member_.next_poll(false));
      return;
    }
    std::optional<StoredState> stored;
    if (store_->token_ > 0) stored = StoredState{store_->bytes_, std::to_string(store_->token_)};
    std::vector<RendezvousAction> delivered;
    tried_.clear();
    check(member_.read(stored, now(), &delivered));
    const auto proposed = member_.propose(now(), &delivered);
    if (!proposed) observe();
    deliver(delivered);
    if (!proposed) {
      poll_state(member_.next_poll(false));
      return;
    }
    is_writing_ = true;
    later(delay(), [this, write = *proposed] { finish(write); });
  }

  static Status blocked() { return {StatusCode::kUnavailable, "blocked"}; }

  void expire_node() {
    is_lost_ = true;
    if (agent_->is_alive()) agent_->lose_coordinator();
  }

  void finish(const core::SharedWrite& write) {
    is_writing_ = false;
    const std::string token = store_->token_ > 0 ? std::to_string(store_->token_) : "";
    if (!agent_->path()->is_open()) {
      // Half of the writes that are not answered have been done.
      if (store_->dice_->chance(0.5) && write.token.value_or("") == token) store(write);
      if (!member_.write_failed(blocked(), now()).ok()) {
        expire_node();
        return;
      }
    } else {
      std::vector<RendezvousAction> delivered;
      const bool was_set = write.token.value_or("") == token;
      if (was_set) store(write);
      check(member_.wrote({was_set, {store_->bytes_, std::to_string(store_->token_)}}, now(),
                          &delivered));
      deliver(delivered);
    }
    poll_state(member_.next_poll(false));
  }

  void store(const core::SharedWrite& write) {
    store_->bytes_ = write.bytes;
    ++store_->token_;
    observe();
  }

  // What was tried has been taken.
  void observe() {
    for (std::size_t i = 1; i < tried_.size(); ++i) {
      ++store_->steps_;
      store_->checker_.observe(tried_[i - 1].is, tried_[i].event, tried_[i].actions, tried_[i].is);
      store_->record_rounds();
    }
    tried_.clear();
  }

  void deliver(const std::vector<RendezvousAction>& delivered) {
    for (const RendezvousAction& action : delivered) link_->send(Side::kServer, action);
  }
  void check(const Status& status) {
    if (!status.ok()) store_->fault_ = std::string(status.message());
  }

  SimShared* store_;
  SimAgent* agent_;
  std::shared_ptr<SimLink> link_;
  core::SharedStateMachine member_;
  std::vector<Step> tried_;
  std::uint64_t plan_ = 0;  // counts planned looks
  bool is_writing_ = false;
  bool is_lost_ = false;  // it has given up
};

SimShared::SimShared(SimClock* clock, Dice* dice, JobSettings settings, Log log_progress)
    : SimAuthority(clock, std::move(settings), std::move(log_progress)), dice_(dice) {
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

Rendezvous SimShared::stored() const {
  core::SharedStateMachine reader(settings_, 0, clock_->now());
  std::vector<RendezvousAction> delivered;
  std::optional<StoredState> state;
  if (token_ > 0) state = StoredState{bytes_, "now"};
  (void)reader.read(state, clock_->now(), &delivered);
  Rendezvous copy(settings_, clock_->now(), 0s);
  (void)copy.load(reader.machine().encode(), clock_->now());
  return copy;
}

std::string SimShared::describe() const { return stored().describe(clock_->now()); }

std::uint32_t SimShared::generation() const { return stored().record().generation; }

}  // namespace elastic::test
