// The hang watch of a coordinator. Node i is host<i>, and has the ranks 2i and 2i+1.

#include <map>
#include <sstream>
#include <variant>

#include "core/hang/hang_watch.h"
#include "core/scenario/scenario.h"

namespace elastic::scenario {
namespace {

using core::HangWatch;
using hang::StackGroup;

class HangAdapter : public StoryAdapter<HangAdapter> {
  friend StoryAdapter;
  static constexpr const char* kFirst = "job";

  void begin(Command& command) {
    command.get("nodes", &nodes_);
    if (command.get_or("has_round", true)) begin_round(1, all_nodes(), Duration::zero());
  }
  static int index_of(const std::string& name) {
    if (!name.starts_with("node")) throw Fault("'" + name + "' is no node");
    return std::stoi(name.substr(4));
  }
  static NodeId id_of(int index) { return {1, static_cast<std::uint64_t>(index)}; }
  std::vector<std::string> all_nodes() const {
    std::vector<std::string> names;
    for (int i = 0; i < nodes_; ++i) names.push_back("node" + std::to_string(i));
    return names;
  }
  static std::string ago(Instant then, Instant now) { return core::duration_text(now - then); }

  void step(const core::HangEvent& event) {
    std::vector<core::HangAnswer> answers;
    watch_.step(event, now_, &answers);
    if (!answers.empty()) print_time(now_);
    for (const core::HangAnswer& answer : answers) {
      std::visit([this](const auto& one) { print(one); }, answer);
    }
  }
  void print(const core::hang_action::Ask& ask) {
    request_ = ask.wanted.request;
    trace_->line(ask.wanted.measures_work
                     ? "Look at what the ranks do, request " + std::to_string(request_)
                     : "Ask for stacks, request " + std::to_string(request_));
  }
  void print(const core::hang_action::Publish& published) {
    static constexpr const char* kActions[] = {"report", "restart", "fail"};
    const hang::Verdict& verdict = published.verdict;
    static constexpr const char* kKinds[] = {"verdict",      "straggler", "stall",
                                             "end of stall", "mismatch",  "note"};
    trace_->line(std::string("Publish ") + kKinds[static_cast<std::size_t>(verdict.kind)] +
                 ", round " + std::to_string(verdict.round) + ", " +
                 kActions[static_cast<std::size_t>(verdict.action)] +
                 (verdict.suspect < 0 ? "" : ", suspect " + std::to_string(verdict.suspect)) +
                 ": " + verdict.text + (verdict.cause.empty() ? "" : "\ncause: " + verdict.cause));
  }
  void print(const core::hang_action::Reply& reply) {
    trace_->line("Reply to observer " + std::to_string(reply.observer) + ": " + reply.text);
  }
  void print(const core::hang_action::Close& closed) {
    trace_->line("Close, exit code " + std::to_string(closed.result.exit_code) + ": " +
                 closed.result.message);
  }

  void begin_round(std::uint64_t round, const std::vector<std::string>& nodes,
                   Duration resume_limit) {
    round_ = round;
    for (const std::string& name : nodes) {
      const int index = index_of(name);
      step(core::round_event::Began{id_of(index), round, "host" + std::to_string(index),
                                    resume_limit});
    }
  }
  void round(Command& command) {
    const auto number = command.number<std::uint64_t>();
    std::vector<std::string> nodes = command.words();
    if (nodes.empty()) nodes = all_nodes();
    begin_round(number, nodes, command.get_or("resume_limit", Duration::zero()));
  }
  void report_step(const std::string& name, hang::NodeProgress progress) {
    const int index = index_of(name);
    if (progress.slowest_rank < 0) progress.slowest_rank = 2 * index;
    step(core::round_event::Progressed{id_of(index), progress});
  }
  // report NODES STEP
  void report(Command& command) {
    std::vector<std::string> words = command.words();
    if (words.size() < 2) throw Fault("report: nodes and a step are needed");
    hang::NodeProgress progress;
    progress.newest = std::stoll(words.back());
    words.pop_back();
    progress.round = command.get_or("round", round_);
    progress.oldest = command.get_or("oldest", progress.newest);
    progress.reporting = command.get_or("reporting", 2);
    command.get("slowest_rank", &progress.slowest_rank);
    command.get("idle", &progress.idle);
    progress.slowest_idle = command.get_or("slowest_idle", progress.idle);
    command.get("section", &progress.section_limit);
    command.get("limit", &progress.limit);
    progress.waiting = command.get_or("waiting", 0);
    command.get("waited", &progress.waited);
    progress.has_advanced = command.get_or("advanced", true);
    const std::string action = command.text("action", "report");
    progress.action = action == "restart" ? hang::Action::kRestart
                      : action == "fail"  ? hang::Action::kFail
                                          : hang::Action::kReport;
    for (const std::string& name : words) report_step(name, progress);
  }
  // All nodes report so many steps, one after another.
  void train(Command& command) {
    const auto steps = command.number<int>();
    const Duration pace = parse_duration(command.text("pace", ""));
    let_time_pass(now_, [&] {
      for (int i = 0; i < steps; ++i) {
        hang::NodeProgress progress;
        progress.round = round_;
        progress.reporting = 2;
        progress.newest = progress.oldest = ++trained_;
        for (const std::string& name : all_nodes()) report_step(name, progress);
        pass(pace);
      }
    });
  }
  static std::vector<std::int32_t> ranks_of(const std::string& text) {
    std::vector<std::int32_t> ranks;
    std::istringstream words(text);
    for (std::string rank; std::getline(words, rank, ',');) ranks.push_back(std::stoi(rank));
    return ranks;
  }
  // The ranks of each kind: waiting=0,1 at_work=3 stopped=2. Those that have entered operation 4,
  // or only 3: entered=0,1 missing=3. Those that did nothing: idle=0,1,3.
  void stacks(Command& command) {
    const int index = index_of(command.word());
    hang::NodeStacks stacks;
    stacks.request = command.get_or("request", request_);
    stacks.host = "host" + std::to_string(index);
    const auto add = [&](const char* key, StackGroup::Kind kind, const std::string& place) {
      const auto ranks = command.text(key);
      if (!ranks) return;
      StackGroup group{
          .ranks = ranks_of(*ranks), .oldest = 3, .kind = kind, .label = place, .text = ""};
      if (kind != StackGroup::Kind::kWaiting) group.text = command.text("stack", "");
      stacks.groups.push_back(group);
    };
    add("waiting", StackGroup::Kind::kWaiting, "in all_reduce (train.py:88)");
    add("at_work", StackGroup::Kind::kAtWork, command.text("place", "in read (data.py:41)"));
    const std::uint64_t number = command.get_or<std::uint64_t>("operation", 4);
    const auto enter = [&](const char* key, std::uint64_t last, std::uint64_t open) {
      if (const auto ranks = command.text(key)) {
        stacks.collectives.push_back({.ranks = *ranks,
                                      .group = "0",
                                      .description = "default_pg",
                                      .members = "",
                                      .last = last,
                                      .open = open,
                                      .operation = open > 0 ? "all_reduce" : "",
                                      .sizes = open > 0 ? "[[4]]" : "",
                                      .waiting = command.get_or("since", Duration::zero())});
      }
    };
    enter("entered", number, number);
    enter("missing", number - 1, 0);
    stacks.idle = ranks_of(command.text("idle", ""));
    step(core::hang_event::StacksReceived{id_of(index), stacks});
  }
  void finish(Command& command) {
    hang::RankFinished finished;
    finished.rank = command.number<int>();
    finished.round = command.get_or("round", round_);
    command.get("limit", &finished.limit);
    command.get("age", &finished.age);
    step(core::hang_event::Finished{finished});
  }
  void request(Command& command) {
    step(core::hang_event::Requested{command.number<std::uint64_t>()});
  }
  void left(Command& command) { step(core::round_event::Left{id_of(index_of(command.word()))}); }
  void round_ended(Command&) { step(core::round_event::Ended{}); }
  void gap(Command& command) {
    const Duration gap = command.duration();
    now_ += gap;
    step(core::round_event::ClockGap{gap});
    step(core::PartTick{});
  }
  void run_for(Command& command) {
    let_time_pass(now_, [&] { pass(command.duration()); });
  }
  void pass(Duration wait) {
    tick_until(now_ + wait, watch_, [this] { step(core::PartTick{}); });
  }
  void show(Command&) {
    trace_->line("limit " + core::duration_text(watch_.limit()));
    if (const auto pace = watch_.pace()) {
      trace_->line("pace: steps " + std::to_string(pace->oldest) + " to " +
                   std::to_string(pace->newest) + ", " + std::to_string(pace->ranks) + " ranks" +
                   (pace->step_time > Duration::zero()
                        ? ", " + core::duration_text(pace->step_time) + " for each step"
                        : ""));
    }
    if (const auto hang = watch_.hang()) {
      trace_->line("hang: at step " + std::to_string(hang->step) + ", no progress for " +
                   ago(hang->progressed, now_) +
                   (hang->suspect < 0
                        ? ""
                        : ", suspect " + std::to_string(hang->suspect) + " " + hang->place));
    }
    if (const auto stall = watch_.stall()) {
      trace_->line("stall: " + stall->text + ", for " + ago(stall->since, now_) +
                   (stall->place.empty() ? "" : ", " + stall->place));
    }
    for (const hang::Straggler& straggler : watch_.stragglers()) {
      trace_->line("straggler: rank " + std::to_string(straggler.rank) + " on " + straggler.node +
                   " at step " + std::to_string(straggler.step) + ", no progress for " +
                   ago(straggler.progressed, now_));
    }
  }

  static const Handlers& commands() {
    static const Handlers kCommands = {
        {"round", &HangAdapter::round},   {"report", &HangAdapter::report},
        {"train", &HangAdapter::train},   {"stacks", &HangAdapter::stacks},
        {"finish", &HangAdapter::finish}, {"request", &HangAdapter::request},
        {"left", &HangAdapter::left},     {"round-ended", &HangAdapter::round_ended},
        {"gap", &HangAdapter::gap},       {"run", &HangAdapter::run_for},
        {"show", &HangAdapter::show},
    };
    return kCommands;
  }

  HangWatch watch_;
  int nodes_ = 2;
  std::uint64_t round_ = 1;
  std::uint64_t request_ = 0;
  std::int64_t trained_ = 0;
};

}  // namespace

std::unique_ptr<Adapter> make_hang_adapter() { return std::make_unique<HangAdapter>(); }

}  // namespace elastic::scenario
