#include "core/succession/job_record.h"

#include <cstdint>
#include <string>
#include <utility>

#include "core/rendezvous/rendezvous_machine.h"
#include "core/succession/succession_fields.h"

namespace elastic::succession {
namespace {

constexpr std::uint16_t kVersion = 1;
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
    v.name(node.voter_address, kNodeTextBytesMax);
  });
  v.tail(record.replaces, kReplacedMax, [&](Replaced& replaced) { visit(v, replaced); });
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

}  // namespace elastic::succession
