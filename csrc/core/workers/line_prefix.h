#pragma once

// The prefix of a worker's lines on the console, made from a template.

#include <string>
#include <string_view>
#include <vector>

namespace elastic::core {

// The values of the template's variables, except the time. Ranks are text because a line of several
// workers has a range: "0-3".
struct PrefixValues {
  std::string role_name;
  std::string rank;
  std::string local_rank;
  std::string hostname;
  std::string round;
};

// ${role_name}, ${rank}, ${local_rank}, ${hostname}, ${round} and ${time} are replaced, with or
// without braces. "$$" becomes "$", and unknown variables stay unchanged.
class LinePrefix {
 public:
  LinePrefix() = default;
  LinePrefix(std::string_view text, const PrefixValues& values);

  bool has_time() const { return parts_.size() > 1; }
  void append_to(std::string* out, std::string_view time) const;

 private:
  std::vector<std::string> parts_;  // the time stands between two parts
};

// "0-3,6": the given numbers, which are ascending, with runs as ranges.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace elastic::core
