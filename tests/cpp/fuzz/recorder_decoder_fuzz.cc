// The invariant: whatever torch's flight recorder returns becomes lines that fit, and whatever a
// worker publishes becomes at most so many states, of which the judge makes one sentence.
//
// The first byte of the input chooses which of the two readers gets the rest. Run:
// recorder_decoder_fuzz tests/cpp/fuzz/recorder_corpus -max_total_time=60

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/check.h"
#include "core/hang/collective_verdict.h"
#include "core/hang/mismatch_watch.h"
#include "worker/collective_blocks.h"
#include "worker/flight_recorder.h"

namespace {

void compare(const std::string& lines) {
  const auto node = elastic::core::node_signatures(
      {{.rank = 0, .signatures = lines}, {.rank = 1, .groups = lines, .signatures = lines}},
      1'800'000'000'000'000'000);
  ELASTIC_CHECK(node.blocks.size() <= elastic::hang::kSignaturesMax);
  elastic::core::MismatchWatch watch;
  watch.add(node, {});
  ELASTIC_CHECK(watch.compare().size() <= elastic::core::kMismatchesMax);
}

void judge(const std::string& lines) {
  compare(lines);
  const std::string groups = lines.substr(0, lines.size() / 2);
  const auto states = elastic::core::collective_states(
      {{.rank = 0, .collectives = lines, .groups = groups}, {.rank = 1, .collectives = groups}},
      1'800'000'000'000'000'000);
  ELASTIC_CHECK(states.size() <= elastic::hang::kCollectivesMax);
  const auto verdict = elastic::core::judge_collectives(states, {});
  ELASTIC_CHECK(verdict.text.find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    judge(text);
    return 0;
  }
  // A copy of exactly these bytes, so that AddressSanitizer detects reads past the end.
  const std::unique_ptr<char[]> exact(new char[text.size()]);
  std::copy(text.begin(), text.end(), exact.get());
  std::string out(512, '\0');
  const std::size_t written =
      elastic::worker::condense(exact.get(), text.size(), out.data(), out.size());
  ELASTIC_CHECK(written <= out.size());
  out.resize(written);
  ELASTIC_CHECK(out.empty() || out.back() == '\n');
  judge(out);
  std::string blocks(1024, '\0');
  blocks.resize(
      elastic::worker::sign_blocks(exact.get(), text.size(), {1, 0}, blocks.data(), blocks.size()));
  ELASTIC_CHECK(blocks.empty() || blocks.back() == '\n');
  compare(blocks);
  return 0;
}
