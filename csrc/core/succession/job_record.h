#pragma once

// The record of a job, from which a successor of its coordinator rebuilds the job: the content that
// voters keep in their register, and the value in a store that all nodes can reach. Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
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

// The content.
struct JobRecord {
  std::string job_id;
  JobSettings settings;
  std::string state;  // RendezvousMachine::encode()
  std::vector<RecordedNode> nodes;
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

// The record as one value in a store: who coordinates the job, and what a successor needs to
// continue it. store_keeper.h reads and replaces it.
struct KeptRecord {
  reg::LineageId lineage;     // drawn by who found the store empty
  std::uint64_t term = 0;     // from 1; counts the coordinators of the lineage
  std::uint64_t version = 0;  // counts the writes of the lineage
  std::uint64_t nonce = 0;    // of this write: no two values of a store are equal

  // The process that coordinates the job; zero: none does, because the last one ended in order.
  NodeId holder;
  NodeId node;          // of that process; zero: it has not joined yet
  std::string address;  // at which it accepts sessions: host:port; "": it does not yet
  // A process that cannot reach the coordinator asks whether it lives, which the coordinator
  // answers by writing 0.
  std::uint64_t challenge = 0;

  reg::Content content;  // encode_record(); no bytes: nothing was decided yet

  bool operator==(const KeptRecord&) const = default;
};

std::string encode_kept(const KeptRecord& record);
// kPeerViolation: not such a value, or of another version of this library.
Result<KeptRecord> decode_kept(std::string_view bytes);

// The coordinator that the record names; nullopt: none accepts sessions.
std::optional<Incumbent> incumbent_of(const KeptRecord& record);

}  // namespace elastic::succession
