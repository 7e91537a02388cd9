#pragma once

// The protocol between two voters, and between a coordinator and a voter: how a connection begins,
// and how messages are delimited.
//
// The side that connects sends kMagic. Then both sides send frames, each a greeting first, which
// names the job. A side that rejects the other one sends Refused instead and closes. Messages prove
// by themselves which node has sent them (core/succession). docs/protocol.md has the grammar. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/messages.h"
#include "core/register/register_codec.h"
#include "elastic/status.h"

namespace elastic::voter {

inline constexpr std::string_view kMagic =
    "\xE5"
    "evoter\n";
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::uint16_t kOldestVersion = 1;
// Until the greeting was received: the longest valid greeting fits.
inline constexpr std::size_t kGreetingBytesMax = 4096;
// A message of the machines above, with the largest record.
inline constexpr std::size_t kFrameBytesMax = reg::kContentBytesMax + (std::size_t{1} << 20);

struct Greeting {
  std::uint16_t version = kVersion;
  std::uint16_t oldest_version = kOldestVersion;
  std::string job_id = {};

  bool operator==(const Greeting&) const = default;
};

struct Refused {
  std::string reason;

  bool operator==(const Refused&) const = default;
};

// A message of the machines above this protocol.
struct Payload {
  std::string bytes;

  bool operator==(const Payload&) const = default;
};

using Frames =
    core::MessageTable<core::Entry<1, Greeting>, core::Entry<2, Refused>, core::Entry<3, Payload>>;
using Frame = Frames::Message;

void append(std::string* out, const Frame& frame);
// What a frame with a payload of this size begins with; the payload follows.
std::string payload_head(std::size_t bytes);

using core::DecodeResult;
using core::DecodeStatus;

// Decodes the frame at the beginning of `bytes`, of at most `bytes_max`.
DecodeResult decode(std::string_view bytes, std::size_t bytes_max, Frame* frame);

// Why a node does not accept the greeting of another node; ok: it does. `own`: what it sends
// itself.
Status check_greeting(const Greeting& received, const Greeting& own);

}  // namespace elastic::voter
