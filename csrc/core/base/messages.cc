#include "core/base/messages.h"

namespace elastic::core {

Status invalid_length(const Protocol& protocol, std::uint32_t length) {
  return {StatusCode::kPeerViolation,
          "a " + std::string(protocol.name) + " frame of " + std::to_string(length) + " bytes; " +
              std::to_string(kMessagePrefixBytes) + " to " +
              std::to_string(protocol.frame_bytes_max) + " are allowed"};
}

Status malformed(const Protocol& protocol, std::uint8_t kind, const FieldReader& reader) {
  return {StatusCode::kPeerViolation, "a " + std::string(protocol.name) + " message of kind " +
                                          std::to_string(kind) + " is malformed" + reader.reason()};
}

}  // namespace elastic::core
