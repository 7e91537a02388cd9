#include "core/succession/job_record.h"

#include <utility>

namespace elastic::succession {
namespace {

constexpr std::uint16_t kVersion = 2;
constexpr std::uint32_t kKeptMagic = 0x50454B45;  // "EKEP"
// Beside the state: of the whole record, and of each of its nodes.
constexpr std::size_t kRecordReserve = 4096;
constexpr std::size_t kNodeReserve = 64;

template <typename Visitor>
void visit_record(Visitor& v, JobRecord& record) {
  v.exact_name(record.job_id, kJobIdBytesMax);
  visit(v, record.settings);
  visit_timings(v, record.settings);
  v.bytes(record.state, reg::kContentBytesMax);
  v.list(record.nodes, kNodesMax, [&](RecordedNode& node) {
    visit(v, node.node);
    v.name(node.voter_address, reg::kAddressBytesMax);
  });
}

// The formats of this value and of the content in it.
std::uint64_t format() { return (std::uint64_t{1} << 32) | record_format(); }

template <typename Visitor>
void visit_kept(Visitor& v, KeptRecord& record) {
  visit(v, record.lineage);
  v.number(record.term);
  v.number(record.version);
  v.number(record.nonce);
  visit(v, record.holder);
  visit(v, record.node);
  v.name(record.address, reg::kAddressBytesMax);
  v.number(record.challenge);
  v.number(record.content.generation);
  v.number(record.content.round);
  v.flag(record.content.is_result);
  v.bytes(record.content.bytes, reg::kContentBytesMax);
}

bool is_sound(const KeptRecord& record) {
  const bool is_owned = record.lineage != reg::LineageId{} && record.term > 0;
  const bool has_holder = record.holder != NodeId{};
  return is_owned && (has_holder || record.address.empty()) && record.term <= reg::kNumberMax &&
         record.version <= reg::kNumberMax;
}

}  // namespace

std::uint32_t record_format() { return (std::uint32_t{kVersion} << 16) | core::kStateVersion; }

std::string check_record_size(std::size_t bytes, std::size_t limit) {
  if (bytes <= limit) return "";
  const auto mib = [](std::size_t size) { return std::to_string(size >> 20) + " MiB"; };
  return "the job's record has " + mib(bytes) + ", more than the " + mib(limit) +
         " that voters keep: give the nodes shorter names and addresses, or run the job with " +
         "voters=1 in --rdzv-conf on every node";
}

std::string encode_record(const JobRecord& record) {
  std::string bytes;
  bytes.reserve(record.state.size() + kNodeReserve * record.nodes.size() + kRecordReserve);
  core::FieldWriter fields(&bytes);
  fields.number(kVersion);
  visit_record(fields, const_cast<JobRecord&>(record));  // the writer changes nothing of it
  return bytes;
}

Result<JobRecord> decode_record(std::string_view bytes) {
  core::FieldReader fields(bytes);
  std::uint16_t version = 0;
  fields.number(version);
  if (version != kVersion) {
    return Status(StatusCode::kPeerViolation,
                  "the record of the job has format " + std::to_string(version) +
                      ", and this version reads " + std::to_string(kVersion));
  }
  JobRecord record;
  visit_record(fields, record);
  if (!fields.ok() || !record.settings.validate().ok()) {
    return Status(StatusCode::kPeerViolation, "the record of the job is damaged" + fields.reason());
  }
  return record;
}

reg::Content content_of(const core::RendezvousMachine& machine, std::string bytes) {
  return {.generation = machine.record().generation,
          .round = machine.record().round,
          .is_result = machine.phase() == RendezvousPhase::kClosed,
          .bytes = std::move(bytes)};
}

std::string encode_kept(const KeptRecord& record) {
  std::string bytes;
  core::ByteWriter head(&bytes);
  head.integer(kKeptMagic);
  head.integer(format());
  core::FieldWriter fields(&bytes);
  visit_kept(fields, const_cast<KeptRecord&>(record));  // the writer changes nothing of it
  return bytes;
}

Result<KeptRecord> decode_kept(std::string_view bytes) {
  const auto refused = [](const std::string& why) {
    return Status(StatusCode::kPeerViolation, "the stored bytes " + why);
  };
  core::ByteReader head(bytes);
  if (head.integer<std::uint32_t>() != kKeptMagic) {
    return refused("are not the record of a job: there is another value under this key");
  }
  const auto found = head.integer<std::uint64_t>();
  if (!head.ok()) return refused("are damaged");
  if (found != format()) {
    return refused("are of another version of elastic (format " + std::to_string(found) +
                   ", this one reads " + std::to_string(format()) +
                   "): give the job another --rdzv-id, or remove them");
  }
  KeptRecord record;
  core::FieldReader fields(head.take(head.left()));
  visit_kept(fields, record);
  if (!fields.ok() || !is_sound(record)) return refused("are damaged" + fields.reason());
  return record;
}

std::optional<Incumbent> incumbent_of(const KeptRecord& record) {
  if (record.address.empty()) return std::nullopt;
  return Incumbent{.lineage = record.lineage,
                   .term = record.term,
                   .node = record.holder,
                   .address = record.address,
                   .voters = {{record.holder, record.address}}};
}

}  // namespace elastic::succession
