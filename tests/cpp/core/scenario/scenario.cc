#include "core/scenario/scenario.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace elastic::scenario {
namespace {

constexpr std::string_view kSeparator = "----";
constexpr std::string_view kQuiet = "quiet ";  // before a command: its trace is not shown

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The next word of the line, with the text between double quotes taken as it is.
std::string take_word(std::string_view* line) {
  std::string word;
  bool is_quoted = false;
  std::size_t i = 0;
  for (; i < line->size() && (is_quoted || (*line)[i] != ' '); ++i) {
    if ((*line)[i] == '"') {
      is_quoted = !is_quoted;
    } else {
      word += (*line)[i];
    }
  }
  if (is_quoted) throw Fault("a double quote is not closed");
  line->remove_prefix(std::min(line->size(), i + 1));
  return word;
}

}  // namespace

Duration parse_duration(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::map<std::string, double> units = {
      {"ns", 1e-9}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}};
  const auto found = units.find(unit);
  if (error != std::errc() || found == units.end()) {
    throw Fault("'" + std::string(text) + "' is no duration");
  }
  return std::chrono::round<Duration>(std::chrono::duration<double>(number * found->second));
}

Command::Command(std::string_view line) {
  name_ = take_word(&line);
  while (!line.empty()) {
    const bool is_text = line.front() == '"';
    std::string word = take_word(&line);
    const std::size_t equals = word.find('=');
    if (is_text || equals == std::string::npos) {
      words_.push_back(std::move(word));
    } else if (!arguments_.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      throw Fault("'" + word.substr(0, equals) + "' is given twice");
    }
  }
}

std::string Command::word() {
  if (!has_word()) throw Fault(name_ + ": a word is missing");
  return words_[next_++];
}

std::vector<std::string> Command::words() {
  std::vector<std::string> rest(words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
  next_ = words_.size();
  return rest;
}

std::optional<std::string> Command::text(const std::string& key) {
  used_.insert(key);
  const auto found = arguments_.find(key);
  if (found == arguments_.end()) return std::nullopt;
  return found->second;
}

bool Command::parse_flag(const std::string& text) {
  if (text != "true" && text != "false") throw Fault("'" + text + "' is neither true nor false");
  return text == "true";
}

void Command::check_all_used() const {
  if (has_word()) throw Fault(name_ + ": unknown word '" + words_[next_] + "'");
  for (const auto& [key, value] : arguments_) {
    if (!used_.contains(key)) throw Fault(name_ + ": unknown argument '" + key + "'");
  }
}

void Trace::line(const std::string& to, const std::string& text) {
  if (!last_to_.empty() && last_to_ != to && lines_.back().text == text) {
    lines_.back().to += ", " + to;
  } else {
    lines_.push_back({to, text});
  }
  last_to_ = to;
}

std::string Trace::text() const {
  std::string all;
  for (const Line& line : lines_) {
    bool is_first = true;
    for (const std::string& part : lines_of(line.text)) {
      if (part.empty()) continue;
      all += (is_first ? (line.to.empty() ? "" : line.to + ": ") : "  ") + part + "\n";
      is_first = false;
    }
  }
  return all;
}

std::string run_scenario(const std::string& text, const std::string& path, Adapter* adapter) {
  std::string result;
  Trace trace;
  bool is_output = false;
  bool has_commands = false;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (is_output) {
      if (!line.empty()) continue;
      is_output = false;
    }
    result += line + "\n";
    if (line.empty() || line.front() == '#') continue;
    try {
      if (line == kSeparator) {
        result += std::exchange(trace, {}).text();
        is_output = true;
        has_commands = false;
        continue;
      }
      has_commands = true;
      Trace unseen;
      const bool is_quiet = line.starts_with(kQuiet);
      Command command(std::string_view(line).substr(is_quiet ? kQuiet.size() : 0));
      adapter->run(&command, is_quiet ? &unseen : &trace);
      trace.end_command();
      command.check_all_used();
    } catch (const Fault& fault) {
      throw Fault(path + ":" + std::to_string(number) + ": " + fault.what());
    }
  }
  if (has_commands) throw Fault(path + ": the last commands have no ----");
  return result;
}

namespace {

// The commands of a block with the number of their first line, and the trace.
struct Block {
  int line = 0;
  std::string commands;
  std::vector<std::string> trace;
};

std::vector<Block> blocks_of(const std::string& text) {
  std::vector<Block> blocks(1);
  bool is_output = false;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (line == kSeparator) {
      is_output = true;
    } else if (is_output && line.empty()) {
      is_output = false;
      blocks.emplace_back();
    } else if (is_output) {
      blocks.back().trace.push_back(line);
    } else if (!line.empty() && line.front() != '#') {
      if (blocks.back().commands.empty()) blocks.back().line = number;
      blocks.back().commands += "  " + line + "\n";
    }
  }
  return blocks;
}

}  // namespace

std::string compare_scenarios(const std::string& expected, const std::string& actual,
                              const std::string& path) {
  const std::vector<Block> before = blocks_of(expected);
  const std::vector<Block> after = blocks_of(actual);
  std::string text;
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    if (before[i].trace == after[i].trace) continue;
    text += path + ":" + std::to_string(before[i].line) + ":\n" + before[i].commands;
    // The lines that both have in front are not repeated.
    auto [old, now] = std::mismatch(before[i].trace.begin(), before[i].trace.end(),
                                    after[i].trace.begin(), after[i].trace.end());
    for (; old != before[i].trace.end(); ++old) text += "- " + *old + "\n";
    for (; now != after[i].trace.end(); ++now) text += "+ " + *now + "\n";
  }
  return text;
}

}  // namespace elastic::scenario
