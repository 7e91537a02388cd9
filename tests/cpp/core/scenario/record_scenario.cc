// Processes of one job, and a store that keeps its record. A process that waits for a change of the
// record is woken by each write of another one.

#include <map>
#include <memory>
#include <variant>

#include "core/scenario/scenario.h"
#include "core/succession/job_record.h"
#include "core/succession/store_keeper.h"

namespace elastic::scenario {
namespace {

using namespace succession;  // NOLINT: events, actions and calls of the machine

struct RecordProcess {
  std::string name;
  std::unique_ptr<StoreKeeper> machine;
  std::optional<KeeperWait> wait;
  bool is_stalled = false;  // does nothing
  int reads = 0;
};

class RecordAdapter : public StoryAdapter<RecordAdapter> {
 public:
  void run(Command* command, Trace* trace) override {
    StoryAdapter::run(command, trace);
    settle_all();
  }

 private:
  friend StoryAdapter;
  static constexpr const char* kFirst = "store";
  enum class Mode : std::uint8_t { kReachable, kAway, kLosesAnswers, kHangs };

  void begin(Command& command) { command.get("has_watch", &has_watch_); }
  RecordProcess& process_of(const std::string& name) {
    const auto found = processes_.find(name);
    if (found == processes_.end()) throw Fault("there is no process '" + name + "'");
    return found->second;
  }
  std::string name_of(const NodeId& id) const {
    return id == NodeId{} ? "none" : "p" + std::to_string(id.low);
  }
  KeptRecord record() const {
    if (!state_) throw Fault("the store is empty");
    return *decode_kept(state_->bytes);
  }
  void put(const KeptRecord& record) {
    state_ = StoredState{encode_kept(record), std::to_string(++writes_)};
  }

  void feed(RecordProcess& process, const Event& event) {
    std::vector<Action> actions;
    process.machine->step(event, now_, &actions);
    print(process, actions);
    settle(process);
  }
  // Answers the calls of the process.
  void settle(RecordProcess& process) {
    if (process.is_stalled) return;
    const auto wake = [&] {
      process.wait.reset();
      std::vector<Action> actions;
      process.machine->waited(has_watch_, now_, &actions);
      print(process, actions);
    };
    while (true) {
      if (process.wait) {
        const auto token = state_ ? std::optional(state_->token) : std::nullopt;
        const bool is_due = process.wait->token != token || now_ >= process.wait->until;
        if (!is_due && !process.machine->must_interrupt()) return;
        wake();
      }
      const auto call = process.machine->next_call();
      if (!call || mode_ == Mode::kHangs) return;
      if (const auto* wait = std::get_if<KeeperWait>(&*call)) {
        process.wait = *wait;
        if (!has_watch_) wake();
        continue;
      }
      std::vector<Action> actions;
      answer(process, *call, &actions);
      print(process, actions);
    }
  }
  void answer(RecordProcess& process, const KeeperCall& call, std::vector<Action>* actions) {
    const Status away(StatusCode::kUnavailable, "it is away");
    StoreKeeper& machine = *process.machine;
    if (std::holds_alternative<KeeperRead>(call)) {
      ++process.reads;
      if (mode_ == Mode::kAway) return machine.read(away, now_, actions);
      return machine.read(state_, now_, actions);
    }
    const auto& write = std::get<KeeperWrite>(call);
    if (mode_ == Mode::kAway) return machine.written(away, now_, actions);
    const auto token = state_ ? std::optional(state_->token) : std::nullopt;
    if (token != write.token) {
      return machine.written(StoredWrite{false, state_.value_or(StoredState{})}, now_, actions);
    }
    state_ = StoredState{write.bytes, std::to_string(++writes_)};
    if (mode_ == Mode::kLosesAnswers) return machine.written(away, now_, actions);
    machine.written(StoredWrite{true, *state_}, now_, actions);
  }
  void settle_all() {
    for (int seen = -1; seen != writes_;) {
      seen = writes_;
      for (auto& [name, process] : processes_) settle(process);
    }
  }

  void print(const RecordProcess& process, const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      std::string text = text_of(action);
      if (text.empty()) continue;
      print_time(now_);
      trace_->line(process.name, text);
    }
  }
  std::string text_of(const Action& action) const {
    const auto at = [](const Incumbent& incumbent) {
      return incumbent.address + ", term " + std::to_string(incumbent.term);
    };
    if (const auto* start = std::get_if<StartCoordinator>(&action)) {
      return "StartCoordinator, term " + std::to_string(start->term) +
             (start->record.state.empty() ? "" : ", continues '" + start->record.state + "'") +
             (start->lost_incumbent == NodeId{}
                  ? ""
                  : ", the node of " + name_of(start->lost_incumbent) + " is lost") +
             (start->is_kept ? "" : ", not kept");
    }
    if (const auto* stop = std::get_if<StopCoordinator>(&action)) {
      return "StopCoordinator" +
             (stop->successor ? ", successor at " + at(*stop->successor) : std::string()) + ": " +
             stop->reason;
    }
    if (const auto* force = std::get_if<InForce>(&action)) {
      return "InForce, proposal " + std::to_string(force->number);
    }
    if (const auto* inform = std::get_if<Inform>(&action)) {
      return "Inform of " + at(inform->incumbent);
    }
    if (const auto* follow = std::get_if<Follow>(&action)) return "Follow " + at(follow->incumbent);
    if (std::holds_alternative<MajorityLost>(action)) return "MajorityLost";
    if (std::holds_alternative<MajorityRegained>(action)) return "MajorityRegained";
    if (const auto* expired = std::get_if<Expired>(&action)) return "Expired: " + expired->reason;
    if (const auto* log = std::get_if<Log>(&action)) return "Log: " + log->message;
    if (const auto* fault = std::get_if<KeeperFault>(&action)) {
      return "KeeperFault, exit code " + std::to_string(fault->exit_code) + ": " + fault->message;
    }
    return "another action";
  }

  void process(Command& command) {
    const std::string name = command.word();
    if (!name.starts_with("p")) throw Fault("'" + name + "' is no process");
    const std::uint64_t number = std::stoull(name.substr(1));
    RecordProcess& process = processes_[name];
    process.name = name;
    const NodeId self{number, number};
    process.machine = std::make_unique<StoreKeeper>(
        StoreKeeper::Settings{.store = "memory", .self = self}, number, now_);
    process.machine->set_rank(command.get_or("rank", -1));
    if (command.get_or("has_node", false)) process.machine->set_node(self);
    settle(process);
  }
  // It is killed with its host.
  void kill(Command& command) {
    const std::string name = command.word();
    process_of(name);
    processes_.erase(name);
  }
  void stall(Command& command) { process_of(command.word()).is_stalled = true; }
  void wake_up(Command& command) { process_of(command.word()).is_stalled = false; }
  void started(Command& command) {
    RecordProcess& process = process_of(command.word());
    feed(process, CoordinatorStarted{command.word()});
  }
  void not_started(Command& command) {
    feed(process_of(command.word()), CoordinatorFailed{"no port is free"});
  }
  // It has a session with the coordinator of the record.
  void session(Command& command) {
    const auto incumbent = incumbent_of(record());
    if (!incumbent) throw Fault("the record names no coordinator");
    for (const std::string& name : command.words()) feed(process_of(name), Informed{*incumbent});
  }
  void connected(Command& command) { feed(process_of(command.word()), IncumbentReturned{}); }
  // The session was silent for node_timeout.
  void silent(Command& command) { feed(process_of(command.word()), IncumbentLost{}); }
  // The address that they follow refuses; was_closed: after the session was closed.
  void refused(Command& command) {
    const bool was_closed = command.get_or("was_closed", false);
    for (const std::string& name : command.words()) {
      RecordProcess& process = process_of(name);
      feed(process, Unreachable{process.machine->address(), true, was_closed});
    }
  }
  void propose(Command& command) {
    RecordProcess& process = process_of(command.word());
    const auto round = command.number<std::uint64_t>();
    JobRecord job;
    job.job_id = "job";
    job.state = "round " + std::to_string(round);
    const reg::Content content{
        .generation = 1, .round = round, .is_result = false, .bytes = encode_record(job)};
    const auto& incumbent = process.machine->incumbent();
    const std::uint64_t term = incumbent ? incumbent->term : 0;
    feed(process, Propose{round, content, command.get_or("term", term)});
  }
  void resign(Command& command) { feed(process_of(command.word()), Resign{}); }

  void store_is(Command& command) {
    static const std::map<std::string, Mode> kModes = {{"reachable", Mode::kReachable},
                                                       {"away", Mode::kAway},
                                                       {"losing-answers", Mode::kLosesAnswers},
                                                       {"hanging", Mode::kHangs}};
    const std::string mode = command.word();
    if (!kModes.contains(mode)) throw Fault("unknown state of the store '" + mode + "'");
    mode_ = kModes.at(mode);
  }
  void store_holds(Command& command) {
    const std::string what = command.word();
    if (what == "nothing") {
      state_.reset();
    } else if (what == "foreign-bytes") {
      state_ = StoredState{"hello", std::to_string(++writes_)};
    } else if (what == "another-lineage") {
      KeptRecord other = record();
      other.lineage = {99, 99};
      other.term = 1;
      put(other);
    } else if (what == "damaged-content") {
      KeptRecord damaged = record();
      damaged.content = {.generation = 1, .round = 1, .is_result = false, .bytes = "damaged"};
      ++damaged.version;
      damaged.holder = {};
      if (const auto holder = command.text("holder")) {
        const std::uint64_t number = std::stoull(holder->substr(1));
        damaged.holder = {number, number};
      } else {
        damaged.address.clear();
      }
      put(damaged);
    } else if (what == "the-saved-record") {
      state_ = saved_;
    } else {
      throw Fault("unknown content '" + what + "'");
    }
  }
  void save_record(Command&) { saved_ = state_; }
  void run_for(Command& command) {
    const Instant end = now_ + command.duration();
    let_time_pass(now_, [&] { run_until(end); });
  }
  void run_until(Instant end) {
    settle_all();
    while (true) {
      Instant next = Instant::max();
      for (auto& [name, process] : processes_) {
        if (process.is_stalled) continue;
        next = std::min(next, process.machine->next_deadline().value_or(Instant::max()));
        if (process.wait) next = std::min(next, process.wait->until);
      }
      now_ = std::max(now_, std::min(next, end));
      for (auto& [name, process] : processes_) {
        if (!process.is_stalled) feed(process, Tick{});
      }
      settle_all();
      if (next > end) break;
    }
  }
  void show(Command& command) {
    const KeptRecord kept = record();
    trace_->line(
        "record: term " + std::to_string(kept.term) + ", holder " + name_of(kept.holder) +
        (kept.address.empty() ? "" : " at " + kept.address) +
        (kept.content.bytes.empty() ? "" : ", round " + std::to_string(kept.content.round)) +
        (kept.challenge != 0 ? ", challenged" : "") + ", " + std::to_string(writes_) + " writes");
    for (const std::string& name : command.words()) {
      const RecordProcess& process = process_of(name);
      const bool has_coordinator = !process.machine->address().empty();
      const std::string why = has_coordinator ? "" : process.machine->explain();
      trace_->line(name + ": " + std::to_string(process.reads) + " reads" +
                   (process.machine->next_deadline() ? "" : ", no deadline") +
                   (process.machine->is_released() ? "" : ", coordinates") +
                   (why.empty() ? "" : ", " + why));
    }
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"process", &RecordAdapter::process},
        {"kill", &RecordAdapter::kill},
        {"stall", &RecordAdapter::stall},
        {"wake-up", &RecordAdapter::wake_up},
        {"started", &RecordAdapter::started},
        {"not-started", &RecordAdapter::not_started},
        {"session", &RecordAdapter::session},
        {"connected", &RecordAdapter::connected},
        {"silent", &RecordAdapter::silent},
        {"refused", &RecordAdapter::refused},
        {"propose", &RecordAdapter::propose},
        {"resign", &RecordAdapter::resign},
        {"store-is", &RecordAdapter::store_is},
        {"store-holds", &RecordAdapter::store_holds},
        {"save-record", &RecordAdapter::save_record},
        {"run", &RecordAdapter::run_for},
        {"show", &RecordAdapter::show},
    };
    return kCommands;
  }

  std::map<std::string, RecordProcess> processes_;
  std::optional<StoredState> state_;
  std::optional<StoredState> saved_;
  int writes_ = 0;
  bool has_watch_ = true;
  Mode mode_ = Mode::kReachable;
};

}  // namespace

std::unique_ptr<Adapter> make_record_adapter() { return std::make_unique<RecordAdapter>(); }

}  // namespace elastic::scenario
