#include "core/snapshot/copy_wire.h"

#include "core/base/bytes.h"

namespace elastic::snapshot {

std::string encode(const CopyMessage& message) {
  std::string bytes;
  core::ByteWriter out(&bytes);
  out.integer(static_cast<std::uint8_t>(message.kind));
  out.integer(message.state.rank);
  out.integer(message.state.world_size);
  out.integer(message.state.step);
  out.integer(message.state.round);
  out.integer(message.state.digest);
  out.integer(message.size);
  out.text(std::string_view(message.text).substr(0, kCopyTextMax));
  bytes.append(message.data);
  return bytes;
}

std::optional<CopyMessage> decode_copy(std::string_view bytes) {
  core::ByteReader in(bytes);
  CopyMessage message;
  const auto kind = in.integer<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(CopyKind::kPut) ||
      kind > static_cast<std::uint8_t>(CopyKind::kMissing)) {
    return std::nullopt;
  }
  message.kind = static_cast<CopyKind>(kind);
  message.state.rank = in.integer<std::int32_t>();
  message.state.world_size = in.integer<std::int32_t>();
  message.state.step = in.integer<std::int64_t>();
  message.state.round = in.integer<std::uint32_t>();
  message.state.digest = in.integer<std::uint32_t>();
  message.size = in.integer<std::uint64_t>();
  message.text = in.text(kCopyTextMax);
  message.data = in.take(in.left());
  const bool has_data = message.kind == CopyKind::kPiece;
  const bool is_valid = in.ok() && message.state.rank >= 0 &&
                        message.state.rank < message.state.world_size && message.state.step >= 0 &&
                        message.data.empty() != has_data && message.data.size() <= kCopyPiece;
  return is_valid ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace elastic::snapshot
