#include "sim/register_checker.h"

#include <utility>

namespace elastic::test {
namespace {

std::string_view number_of(const reg::Content& content) {
  const std::string_view bytes = content.bytes;
  return bytes.substr(0, bytes.find('<'));
}

std::string_view number_of_parent(const reg::Content& content) {
  const std::string_view bytes = content.bytes;
  return bytes.substr(bytes.find('<') + 1);
}

std::string name_of(const reg::Content& content) {
  return (content.is_result ? "result " : "round ") + std::to_string(content.generation) + "." +
         std::to_string(content.round) + " [" + std::string(content.bytes) + "]";
}

}  // namespace

reg::Content derived_content(const reg::Content& parent, std::uint64_t nonce, bool is_result) {
  reg::Content content;
  content.generation = parent.generation + (parent.is_result ? 1 : 0);
  content.round = parent.round + (is_result ? 0 : 1);
  content.is_result = is_result;
  content.bytes = std::to_string(nonce) + "<" + std::string(number_of(parent));
  return content;
}

std::string describe(const reg::Record& record) {
  std::string text = "record " + std::to_string(record.newness.term) + "/" +
                     std::to_string(record.newness.sequence) + " " + name_of(record.content) +
                     " voters";
  for (const reg::Voter& voter : record.voters) text += " " + std::to_string(voter.node.low);
  text += " before";
  for (const reg::Voter& voter : record.previous_voters) {
    text += " " + std::to_string(voter.node.low);
  }
  return text;
}

void RegisterChecker::on_delivered(int slot, const reg::Record& record, bool is_election) {
  Line& line = lines_[record.lineage];
  ++line.delivered;
  if (is_election) {
    const auto [known, is_new] = line.coordinators.emplace(record.newness.term, slot);
    if (!is_new && known->second != slot) {
      complain("I1: two coordinators of one term: " + describe(record));
    }
  }
  const auto [held, is_new] = line.records.emplace(record.newness.sequence, record);
  if (!is_new) {
    if (held->second.content != record.content) {
      complain("I2: two records of one sequence are in force: " + describe(held->second) + " and " +
               describe(record));
    }
    if (held->second.newness < record.newness) held->second = record;
    return;
  }
  const reg::Content& content = record.content;
  const auto [same, is_first] = line.contents.emplace(
      std::tuple(content.generation, content.round, content.is_result), content);
  if (!is_first && same->second != content) {
    complain("I5: two rounds of the lineage have one number: " + name_of(same->second) + " and " +
             name_of(content));
  }
  if (held != line.records.begin()) check_order(std::prev(held)->second, record);
  if (const auto next = std::next(held); next != line.records.end()) {
    check_order(record, next->second);
  }
}

void RegisterChecker::check_order(const reg::Record& before, const reg::Record& after) {
  const reg::Content& old = before.content;
  const reg::Content& next = after.content;
  if (old == next) return;
  if (number_of_parent(next) != number_of(old)) {
    complain("I6: a record in force was not the base of the next one: " + describe(before) +
             " and " + describe(after));
  }
  if (old.is_result && next.generation == old.generation) {
    complain("I8: a result was contradicted: " + describe(before) + " and " + describe(after));
  }
  if (next.round < old.round + (next.is_result ? 0 : 1)) {
    complain("I5: rounds do not grow: " + describe(before) + " and " + describe(after));
  }
}

void RegisterChecker::complain(std::string text) {
  if (violations_->size() < 5) violations_->push_back(std::move(text));
}

std::uint64_t RegisterChecker::delivered(const reg::LineageId& lineage) const {
  const auto found = lines_.find(lineage);
  return found == lines_.end() ? 0 : found->second.delivered;
}

const reg::Record* RegisterChecker::newest(const reg::LineageId& lineage) const {
  const auto found = lines_.find(lineage);
  if (found == lines_.end() || found->second.records.empty()) return nullptr;
  return &found->second.records.rbegin()->second;
}

}  // namespace elastic::test
