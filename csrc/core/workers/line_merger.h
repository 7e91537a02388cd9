#pragma once

// Merges identical lines of several workers into one line that names them all.
//
// A line waits until every worker has written it, or until kMergeTimeout has passed. Lines keep the
// order of their first arrival, and no worker's lines change their order.
//
// Pure. Not thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "elastic/time.h"

namespace elastic::core {

class LineMerger {
 public:
  // The ascending numbers of the workers that wrote the line.
  using Sink = std::function<void(const std::vector<int>& workers, std::string_view text)>;
  static constexpr Duration kMergeTimeout = std::chrono::milliseconds(200);
  // Beyond these limits the oldest line no longer waits.
  static constexpr std::size_t kLinesMax = 1024;
  static constexpr std::size_t kBytesMax = 1024 * 1024;

  // Adds a worker that will write lines.
  void add_worker(int worker);
  // The worker writes no further lines.
  void remove_worker(int worker);
  void feed(int worker, std::string_view text, Instant now, const Sink& sink);
  // Passes on the lines that waited long enough.
  void advance(Instant now, const Sink& sink);
  // Passes on all lines.
  void flush(const Sink& sink);
  // When advance() must be called; nullopt: no line waits.
  std::optional<Instant> next_deadline() const;

 private:
  struct Line {
    std::string text;
    std::vector<int> workers;  // ascending
    Instant since;
  };

  bool join(int worker, std::string_view text);
  bool is_complete(const Line& line) const;
  void pop(const Sink& sink);

  std::deque<Line> lines_;
  std::uint64_t popped_ = 0;  // lines that have left the front; positions count from the start
  std::unordered_map<int, std::uint64_t> next_;  // by worker: position after its last line
  std::size_t bytes_ = 0;
};

}  // namespace elastic::core
