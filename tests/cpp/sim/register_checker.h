#pragma once

// Observes every record that a coordinator of the simulation delivers, and reports what contradicts
// the invariants (docs/rendezvous.md) as far as the register is responsible for them: the delivered
// contents of a lineage form one line, in which each was derived from the one before.

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/register/register_types.h"

namespace elastic::test {

// A content of the simulation knows the content that it was derived from.
reg::Content derived_content(const reg::Content& parent, std::uint64_t nonce, bool is_result);

class RegisterChecker {
 public:
  explicit RegisterChecker(std::vector<std::string>* violations) : violations_(violations) {}

  // Elected or Deliver at this slot.
  void on_delivered(int slot, const reg::Record& record, bool is_election);

  // How many records this lineage has in force; 0: it never began.
  std::uint64_t delivered(const reg::LineageId& lineage) const;
  const reg::Record* newest(const reg::LineageId& lineage) const;

 private:
  struct Line {
    std::map<std::uint64_t, reg::Record> records;  // by sequence
    std::map<std::uint64_t, int> coordinators;     // slot by term
    std::map<std::tuple<std::uint64_t, std::uint64_t, bool>, reg::Content> contents;
    std::uint64_t delivered = 0;
  };

  void check_order(const reg::Record& before, const reg::Record& after);
  void complain(std::string text);

  std::map<reg::LineageId, Line> lines_;
  std::vector<std::string>* violations_;
};

std::string describe(const reg::Record& record);

}  // namespace elastic::test
