#pragma once

// The content of a job's record in the register: what a successor needs to rebuild the job. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/register/register_codec.h"
#include "core/register/register_types.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"

namespace elastic::succession {

// A node of the record, and where the successor announces itself to it.
struct RecordedNode {
  NodeId node;
  std::string voter_address;

  bool operator==(const RecordedNode&) const = default;
};

struct JobRecord {
  std::string job_id;
  JobSettings settings;
  std::string state;  // RendezvousMachine::encode()
  std::vector<RecordedNode> nodes;
  std::vector<Replaced> replaces = {};  // oldest first; at most kReplacedMax
};

// The format of a record and of the state in it, as one number. A build reads its own one only.
std::uint32_t record_format();

// "": voters keep a record of this size. Otherwise one sentence. `limit`: tests use a different
// one.
std::string check_record_size(std::size_t bytes, std::size_t limit = reg::kContentBytesMax);

std::string encode_record(const JobRecord& record);
// kPeerViolation: not a job's record.
Result<JobRecord> decode_record(std::string_view bytes);

// The register's view of the machine's state, with `bytes` as its opaque part.
reg::Content content_of(const core::RendezvousMachine& machine, std::string bytes);

}  // namespace elastic::succession
