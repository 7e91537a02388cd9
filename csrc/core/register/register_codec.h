#pragma once

// The register's messages as bytes (core/base/fields.h), which begin with a version. The transport
// delimits them. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/register/register_types.h"
#include "elastic/status.h"

namespace elastic::reg {

inline constexpr std::uint16_t kFormatVersion = 1;
// The one limit of a record: compared when it is proposed, sent and received. The state of a job of
// tens of thousands of nodes fits.
inline constexpr std::size_t kContentBytesMax = std::size_t{15} << 20;

std::string encode_message(const Message& message);
void append_message(std::string* out, const Message& message);
// kPeerViolation: not a message of the register; kFailedPrecondition: of a newer version.
Result<Message> decode_message(std::string_view bytes);

}  // namespace elastic::reg
