#pragma once

// The frames between the voter ports of a job's nodes.
//
// A frame is self-contained: it names the job, the sender and, where the sender knows it, the
// receiver. The transport delimits frames (u32 length) and limits their size; it does not read
// them. A receiver ignores a frame that names another job or another receiver: the port may have
// been reused by another process. Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/register/register_codec.h"
#include "core/register/register_types.h"
#include "core/succession/job_record.h"
#include "core/succession/succession_types.h"
#include "elastic/status.h"

namespace elastic::succession {

inline constexpr std::uint16_t kVoterWireVersion = 1;
// A record of the largest job, and what surrounds it.
inline constexpr std::size_t kVoterFrameBytesMax = reg::kContentBytesMax + (std::size_t{64} << 10);

// Asks whether a process answers here that can vote in this lineage. The reply proves the
// incarnation, not only the port. A process that belongs to another lineage does not reply.
struct Probe {
  reg::LineageId lineage;

  bool operator==(const Probe&) const = default;
};
struct ProbeReply {
  reg::LineageId lineage;  // of the probe
  // What the process can read: it votes if that is the format of the coordinator.
  std::uint32_t record_format = succession::record_format();

  bool operator==(const ProbeReply&) const = default;
};
// Names the coordinator: a new coordinator sends it to every node of the record until the node has
// resumed, and a voter replies to Query with it.
struct Announce {
  Incumbent incumbent;

  bool operator==(const Announce&) const = default;
};
// Asks for the coordinator; sent by a node that has lost it, to the voters that it knows.
struct Query {
  std::uint64_t term = 0;  // the highest that the sender knows

  bool operator==(const Query&) const = default;
};

// An operator's command: the majority of the job's voters is lost for good, and this voter begins a
// new lineage. is_survey: sent by a voter to the others, to report that it was given the
// command: if two voters were, only one continues.
struct Override {
  std::uint64_t nonce = 0;  // of the command; repeated in the reply
  bool is_survey = false;

  bool operator==(const Override&) const = default;
};
struct OverrideReply {
  std::uint64_t nonce = 0;
  bool is_done = false;  // this voter runs the coordinator of the new lineage
  std::string text;      // one sentence: what was done, or why nothing was

  bool operator==(const OverrideReply&) const = default;
};

using VoterBody =
    std::variant<reg::Message, Probe, ProbeReply, Announce, Query, Override, OverrideReply>;

struct VoterFrame {
  std::string job_id;
  NodeId from;
  NodeId to;  // zero: any process at the address
  VoterBody body;

  bool operator==(const VoterFrame&) const = default;
};

// The lineage whose voter the frame is for; nullopt: it is for any.
std::optional<reg::LineageId> lineage_of(const VoterFrame& frame);

std::string encode_frame(const VoterFrame& frame);
// kPeerViolation: not a frame; kFailedPrecondition: of a newer version. The transport closes the
// connection after either.
Result<VoterFrame> decode_frame(std::string_view bytes);

}  // namespace elastic::succession
