// The invariant: of whatever a worker has left in memory only a whole snapshot is used, and every
// part of it is within the file.
//
// The input is the header, then the index and the parts. Run:
// snapshot_decoder_fuzz tests/cpp/fuzz/snapshot_corpus -max_total_time=60

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/snapshot/format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace snapshot = elastic::snapshot;
  if (size < sizeof(snapshot::Header)) return 0;
  // As much as fits into a file of a few pages; the rest of the first page is not read.
  std::vector<std::uint8_t> file(snapshot::kPage, 0);
  std::memcpy(file.data(), data, sizeof(snapshot::Header));
  file.insert(file.end(), data + sizeof(snapshot::Header), data + size);
  snapshot::Header header;
  if (!snapshot::read_header(file.data(), file.size(), &header)) {
    // The checks behind it are reached with a header that fits.
    header = {.state = snapshot::State::kComplete,
              .step = 1,
              .world = 1,
              .parts = static_cast<std::uint32_t>(data[0] % 8)};
    header.size = std::max<std::uint64_t>(file.size(), snapshot::data_offset(header.parts));
    file.resize(header.size);
    std::memcpy(file.data(), &header, sizeof header);
  }
  const std::uint32_t digest = snapshot::digest_of(header, file.data());
  const auto* entries = snapshot::open_snapshot(file.data(), file.size(), digest, &header);
  if (entries == nullptr) return 0;
  for (std::uint32_t i = 0; i < header.parts; ++i) {
    ELASTIC_CHECK(entries[i].offset >= snapshot::kPage);
    ELASTIC_CHECK(entries[i].offset + entries[i].bytes <= file.size());
    snapshot::has_nan(entries[i].kind, file.data() + entries[i].offset, entries[i].bytes);
  }
  ELASTIC_CHECK(snapshot::open_snapshot(file.data(), file.size(), digest ^ 1, &header) == nullptr);
  return 0;
}
