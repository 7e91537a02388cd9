// The coordinator's machine for agreed steps. The replies of the nodes are commands: each answers
// the last order that its node received.

#include <map>
#include <sstream>
#include <variant>

#include "core/drain/drain_machine.h"
#include "core/scenario/scenario.h"

namespace elastic::scenario {
namespace {

using core::DrainMachine;
using core::DrainPhase;
using drain::Order;
using drain::Reply;

const std::map<std::string, Reply::Kind> kReplyKinds = {
    {"steps", Reply::Kind::kSteps},     {"accepted", Reply::Kind::kAccepted},
    {"refused", Reply::Kind::kRefused}, {"waiting", Reply::Kind::kWaiting},
    {"reached", Reply::Kind::kReached}, {"ended", Reply::Kind::kEnded},
};

class DrainAdapter : public StoryAdapter<DrainAdapter> {
  friend StoryAdapter;
  static constexpr const char* kFirst = "job";

  void begin(Command& command) {
    command.get("nodes", &nodes_);
    command.get("ranks", &ranks_);
    command.get("min", &min_nodes_);
  }
  static NodeId id_of(const std::string& name) {
    if (!name.starts_with("node")) throw Fault("'" + name + "' is no node");
    return {1, std::stoull(name.substr(4))};
  }
  static std::string name_of(const NodeId& id) { return "node" + std::to_string(id.low); }

  void step(const core::DrainEvent& event) {
    std::vector<core::DrainAction> actions;
    machine_.step(event, now_, &actions);
    if (!actions.empty()) print_time(now_);
    for (const core::DrainAction& action : actions) {
      std::visit([this](const auto& one) { print(one); }, action);
    }
  }
  void print(const core::drain_action::Send& sent) {
    const Order& order = sent.order;
    orders_[sent.to] = order;
    static constexpr const char* kNames[] = {"Ask", "Tentative", "Withdraw", "Commit", "Release"};
    trace_->line(name_of(sent.to),
                 std::string(kNames[static_cast<std::size_t>(order.kind)]) +
                     (order.step < 0 ? "" : " step " + std::to_string(order.step)) + ", round " +
                     std::to_string(order.round) + ", proposal " + std::to_string(order.proposal) +
                     (order.notice.left > Duration::zero() ? "" : ", no time left"));
  }
  void print(const core::drain_action::Announce& news) { trace_->line("Announce: " + news.text); }
  void print(const core::drain_action::Close& closed) {
    trace_->line("Close, exit code " + std::to_string(closed.result.exit_code) + ": " +
                 closed.result.message);
  }
  void print(const core::drain_action::Inform& told) {
    trace_->line("Inform observer " + std::to_string(told.observer) +
                 (told.is_agreed ? ", agreed: " : ", refused: ") + told.text);
  }
  void print(const core::drain_action::HoldGrowth&) { trace_->line("HoldGrowth"); }
  void print(const core::drain_action::Grow& grow) {
    trace_->line(grow.why.empty() ? "Grow" : "Grow: " + grow.why);
  }

  // A round of these nodes begins, or its nodes resume.
  void round(Command& command) {
    const auto number = command.number<std::uint64_t>();
    std::vector<std::string> names = command.words();
    if (names.empty()) {
      for (int i = 0; i < nodes_; ++i) names.push_back("node" + std::to_string(i));
    }
    const int members = command.get_or("members", static_cast<int>(names.size()));
    const Duration limit = command.get_or("resume_limit", Duration::zero());
    for (const std::string& name : names) {
      step(core::round_event::Began{id_of(name), number, name, limit, members, min_nodes_});
    }
  }
  void notice(Command& command) {
    core::drain_event::Noticed noticed{
        {command.duration(), command.text("reason", "SIGTERM on node0")}};
    if (const auto leaving = command.text("leave")) {
      noticed.notice.departure = drain::Departure{{}, command.get_or("stops_job", false)};
      std::istringstream names(*leaving == "nobody" ? "" : *leaving);
      for (std::string name; std::getline(names, name, ',');) {
        noticed.notice.departure->nodes.push_back(id_of(name));
      }
    }
    command.get("observer", &noticed.observer);
    command.get("resume_limit", &noticed.resume_limit);
    noticed.spares = spares_;
    step(noticed);
  }
  void spares(Command& command) { spares_ = command.number<int>(); }
  void min_nodes(Command& command) { min_nodes_ = command.number<int>(); }
  void progress(Command& command) {
    const NodeId node = id_of(command.word());
    hang::NodeProgress progress;
    progress.newest = progress.oldest = command.number<std::int64_t>();
    progress.round = command.get_or<std::uint64_t>("round", 1);
    progress.reporting = command.get_or("reporting", ranks_);
    step(core::round_event::Progressed{node, progress});
  }
  // reply NODES KIND
  void reply(Command& command) {
    std::vector<std::string> words = command.words();
    if (words.size() < 2) throw Fault("reply: nodes and a kind are needed");
    const auto kind = kReplyKinds.find(words.back());
    if (kind == kReplyKinds.end()) throw Fault("unknown reply '" + words.back() + "'");
    words.pop_back();
    Reply reply;
    reply.kind = kind->second;
    const bool is_finished = command.get_or("finished", false);
    const bool has_steps = command.get("newest", &reply.newest);
    reply.oldest = command.get_or("oldest", reply.newest);
    reply.num_silent = command.get_or("silent", has_steps || is_finished ? 0 : ranks_);
    reply.reporting = has_steps ? ranks_ - reply.num_silent : 0;
    if (kind->second != Reply::Kind::kSteps && !has_steps) {
      reply.reporting = is_finished ? 0 : ranks_;
      reply.num_silent = 0;
    }
    command.get("held", &reply.held);
    command.get("committed", &reply.is_committed);
    reply.can_continue = command.get_or("can_continue", !is_finished);
    if (command.get("at", &reply.first_stop)) {
      reply.last_stop = reply.first_stop;
      reply.stopped = ranks_;
    }
    std::optional<std::uint64_t> proposal;
    if (std::uint64_t number = 0; command.get("proposal", &number)) proposal = number;
    for (const std::string& name : words) {
      const NodeId node = id_of(name);
      const auto order = orders_.find(node);
      if (order == orders_.end()) throw Fault(name + " has received no order");
      reply.round = order->second.round;
      reply.proposal = proposal.value_or(order->second.proposal);
      reply.silent.clear();
      for (int i = ranks_ - reply.num_silent; i < ranks_; ++i) {
        reply.silent.push_back(ranks_ * static_cast<int>(node.low) + i);
      }
      step(core::drain_event::Replied{node, reply, spares_});
    }
  }
  void grow(Command& command) { step(core::drain_event::GrowthDue{command.number<int>()}); }
  // The coordinator's process does not run.
  void gap(Command& command) {
    const Duration gap = command.duration();
    now_ += gap;
    step(core::round_event::ClockGap{gap});
    step(core::PartTick{});
  }
  void growth_off(Command&) { step(core::drain_event::GrowthOff{}); }
  void left(Command& command) {
    core::round_event::Left left{id_of(command.word())};
    if (int members = 0; command.get("members", &members)) left.nodes = members;
    step(left);
  }
  void round_ended(Command&) { step(core::round_event::Ended{}); }
  void job_over(Command&) { step(core::round_event::Over{}); }
  void run_for(Command& command) {
    const Instant end = now_ + command.duration();
    let_time_pass(now_, [&] { tick_until(end, machine_, [this] { step(core::PartTick{}); }); });
  }
  void show(Command&) {
    static constexpr const char* kPhases[] = {"idle",     "await round", "await steps", "asking",
                                              "proposed", "committed",   "reached",     "over",
                                              "holding",  "released"};
    const auto next = machine_.next_deadline();
    const std::string text = machine_.describe();
    trace_->line(
        std::string(kPhases[static_cast<std::size_t>(machine_.phase())]) +
        (text.empty() ? "" : ": " + text) +
        (next ? ", next deadline in " + core::duration_text(*next - now_) : ", no deadline"));
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"round", &DrainAdapter::round},
        {"notice", &DrainAdapter::notice},
        {"spares", &DrainAdapter::spares},
        {"min-nodes", &DrainAdapter::min_nodes},
        {"progress", &DrainAdapter::progress},
        {"reply", &DrainAdapter::reply},
        {"left", &DrainAdapter::left},
        {"round-ended", &DrainAdapter::round_ended},
        {"job-over", &DrainAdapter::job_over},
        {"run", &DrainAdapter::run_for},
        {"show", &DrainAdapter::show},
        {"grow", &DrainAdapter::grow},
        {"growth-off", &DrainAdapter::growth_off},
        {"gap", &DrainAdapter::gap},
    };
    return kCommands;
  }

  DrainMachine machine_;
  int nodes_ = 2;
  int ranks_ = 2;
  int min_nodes_ = 1;
  int spares_ = 0;
  std::map<NodeId, Order> orders_;
};

}  // namespace

std::unique_ptr<Adapter> make_drain_adapter() { return std::make_unique<DrainAdapter>(); }

}  // namespace elastic::scenario
