#include "core/session/coordinator_state.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/siphash.h"
#include "core/rendezvous/host_gate.h"
#include "core/rendezvous/rendezvous_fields.h"

namespace elastic::core {
namespace {

constexpr std::uint32_t kSnapshotMagic = 0x54534345;  // "ECST"
constexpr std::uint16_t kVersion = 2;
constexpr std::size_t kJobsMax = 1 << 20;
constexpr std::size_t kSecretsMax = 1 << 20;  // far above the nodes of a job, spares included
constexpr std::uint64_t kDigestSeed = 0;      // detects damage, not forgery
constexpr std::size_t kDigestBytes = sizeof(std::uint64_t);

std::uint64_t digest(std::string_view bytes) { return SipHash(kDigestSeed)(bytes); }

template <typename Visitor>
void visit(Visitor& v, std::vector<StoredJob>& jobs) {
  v.list(jobs, kJobsMax, [&](StoredJob& job) {
    v.exact_name(job.id, session::kJobIdBytesMax);
    v.number(job.term);
    visit(v, job.settings);
    visit_timings(v, job.settings);
    v.bytes(job.state, std::numeric_limits<std::uint32_t>::max());
    v.list(job.secrets, kSecretsMax, [&](StoredSecret& one) {
      visit(v, one.node);
      v.number(one.secret.high);
      v.number(one.secret.low);
    });
  });
}

// Earlier versions know none, and read a file that has none.
template <typename Visitor>
void extend_hosts(Visitor& v, StoredHosts& hosts) {
  std::optional<StoredHosts> stored;
  if (!hosts.empty()) stored = std::move(hosts);
  v.extension(1, stored, [](auto& inner, StoredHosts& list) {
    inner.list(list, kJobsMax, [&](auto& one) {
      inner.exact_name(one.first, session::kJobIdBytesMax);
      inner.bytes(one.second, kHostGateBytesMax);
    });
  });
  hosts = std::move(stored).value_or(StoredHosts());
}

}  // namespace

std::string encode_jobs(std::vector<StoredJob> jobs, StoredHosts hosts) {
  std::string bytes;
  ByteWriter head(&bytes);
  head.integer(kSnapshotMagic);
  head.integer(kVersion);
  FieldWriter writer(&bytes);
  visit(writer, jobs);
  extend_hosts(writer, hosts);
  head.integer(digest(bytes));
  return bytes;
}

Result<std::vector<StoredJob>> decode_jobs(std::string_view bytes, StoredHosts* hosts) {
  ByteReader head(bytes);
  const bool is_ours = head.integer<std::uint32_t>() == kSnapshotMagic;
  const auto version = head.integer<std::uint16_t>();
  if (!is_ours || !head.ok()) {
    return Status(StatusCode::kPeerViolation, "not the state of a coordinator");
  }
  if (version != kVersion) {
    return other_version("written by", version, kVersion);
  }
  constexpr std::size_t kHeadBytes = sizeof kSnapshotMagic + sizeof kVersion;
  const Status damaged(StatusCode::kPeerViolation, "the state is damaged");
  if (bytes.size() < kHeadBytes + kDigestBytes) return damaged;
  const std::string_view content = bytes.substr(0, bytes.size() - kDigestBytes);
  ByteReader tail(bytes.substr(content.size()));
  if (tail.integer<std::uint64_t>() != digest(content)) return damaged;
  std::vector<StoredJob> jobs;
  FieldReader reader(content.substr(kHeadBytes));
  visit(reader, jobs);
  StoredHosts found;
  extend_hosts(reader, found);
  if (!reader.ok()) return damaged;
  if (hosts != nullptr) *hosts = std::move(found);
  return jobs;
}

}  // namespace elastic::core
