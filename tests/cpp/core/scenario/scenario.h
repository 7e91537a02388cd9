#pragma once

// Stories of the documents as text files: commands to a machine, and the trace that they leave.
// CONTRIBUTING.md shows the format. A machine is driven by one adapter, the file
// <subject>_scenario.cc; the stories of a subject are in tests/data/scenarios/<subject>.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "elastic/time.h"

namespace elastic::scenario {

// A command that cannot be executed as it is written.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "5s", "250ms", "2min", "1h".
Duration parse_duration(std::string_view text);

// One command line: a name, words, and arguments of the form key=value; a value with spaces is in
// double quotes. What an adapter does not ask for is a fault.
class Command {
 public:
  explicit Command(std::string_view line);

  const std::string& name() const { return name_; }
  bool has_word() const { return next_ < words_.size(); }
  std::string word();  // the next one
  std::vector<std::string> words();
  Duration duration() { return parse_duration(word()); }
  template <typename Number>
  Number number() {
    return parse_number<Number>(word());
  }

  std::optional<std::string> text(const std::string& key);
  std::string text(const std::string& key, const std::string& otherwise) {
    return text(key).value_or(otherwise);
  }
  // Sets `*value` if the argument is given.
  template <typename Value>
  bool get(const std::string& key, Value* value) {
    const std::optional<std::string> given = text(key);
    if (!given) return false;
    if constexpr (std::is_same_v<Value, Duration>) {
      *value = parse_duration(*given);
    } else if constexpr (std::is_same_v<Value, bool>) {
      *value = parse_flag(*given);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      *value = *given;
    } else {
      *value = parse_number<Value>(*given);
    }
    return true;
  }
  template <typename Value>
  Value get_or(const std::string& key, Value otherwise) {
    get(key, &otherwise);
    return otherwise;
  }
  void check_all_used() const;

 private:
  template <typename Number>
  static Number parse_number(const std::string& text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw Fault("'" + text + "' is no number");
    }
    return value;
  }
  static bool parse_flag(const std::string& text);

  std::string name_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
  std::map<std::string, std::string> arguments_;
  std::set<std::string> used_;
};

// The lines that commands print. Equal lines of one command to several nodes in a row become one.
class Trace {
 public:
  void line(const std::string& text) {
    lines_.push_back({"", text});
    last_to_.clear();
  }
  void line(const std::string& to, const std::string& text);
  void end_command() { last_to_.clear(); }
  std::string text() const;

 private:
  struct Line {
    std::string to;
    std::string text;
  };
  std::vector<Line> lines_;
  std::string last_to_;  // "": the next line stands alone
};

class Adapter {
 public:
  virtual ~Adapter() = default;
  // Executes the command; throws a Fault if it does not know it.
  virtual void run(Command* command, Trace* trace) = 0;
};

// An adapter whose commands are methods, in the map commands(). The command kFirst, its begin(),
// begins a story with a new machine.
template <typename Self>
class StoryAdapter : public Adapter {
 public:
  void run(Command* command, Trace* trace) override {
    auto& self = static_cast<Self&>(*this);
    if (command->name() == Self::kFirst) {
      self = {};
      trace_ = trace;
      self.begin(*command);
      return;
    }
    if (trace_ == nullptr) throw Fault(std::string("a story begins with ") + Self::kFirst);
    trace_ = trace;
    const auto found = Self::commands().find(command->name());
    if (found == Self::commands().end()) throw Fault("unknown command '" + command->name() + "'");
    (self.*found->second)(*command);
  }

 protected:
  using Handlers = std::map<std::string, void (Self::*)(Command&)>;
  static constexpr Instant kBegin{std::chrono::seconds(100)};

  // A command lets time pass: what is printed then has its time before it.
  template <typename Pass>
  void let_time_pass(Instant now, const Pass& pass) {
    begun_ = now;
    printed_at_ = Instant::min();
    is_running_ = true;
    pass();
    is_running_ = false;
  }
  bool is_running() const { return is_running_; }
  void print_time(Instant now) {
    if (!is_running_ || std::exchange(printed_at_, now) == now) return;
    trace_->line("after " + core::duration_text(now - begun_));
  }
  // Until then, to each deadline of the machine in turn.
  template <typename Machine, typename Tick>
  void tick_until(Instant end, const Machine& machine, const Tick& tick) {
    for (auto next = machine.next_deadline(); next && *next <= end;
         next = machine.next_deadline()) {
      now_ = std::max(now_, *next);
      tick();
    }
    now_ = end;
  }

  Trace* trace_ = nullptr;
  Instant now_ = kBegin;

 private:
  bool is_running_ = false;
  Instant begun_;
  Instant printed_at_;
};

std::unique_ptr<Adapter> make_agent_adapter();
std::unique_ptr<Adapter> make_drain_adapter();
std::unique_ptr<Adapter> make_hang_adapter();
std::unique_ptr<Adapter> make_record_adapter();
std::unique_ptr<Adapter> make_rendezvous_adapter();
std::unique_ptr<Adapter> make_session_adapter();

// Runs a file. Returns it with the traces that the machine has left.
std::string run_scenario(const std::string& text, const std::string& path, Adapter* adapter);
// What differs, for people: each block with its line, what the file expects and what was printed.
std::string compare_scenarios(const std::string& expected, const std::string& actual,
                              const std::string& path);

}  // namespace elastic::scenario
