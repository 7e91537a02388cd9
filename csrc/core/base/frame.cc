#include "core/base/frame.h"

#include "core/base/bytes.h"

namespace elastic::core {

Frame next_frame(std::string_view bytes, const FrameLimits& limits) {
  if (bytes.size() < kFrameHeaderBytes) return {FrameStatus::kNeedMore, kFrameHeaderBytes};
  const auto length = load_integer<std::uint32_t>(bytes.data());
  if (length < limits.min || length > limits.max) return {FrameStatus::kViolation, 0, length};
  const std::size_t whole = kFrameHeaderBytes + length;
  if (bytes.size() < whole) return {FrameStatus::kNeedMore, whole};
  return {FrameStatus::kFrame, whole, length, bytes.substr(kFrameHeaderBytes, length)};
}

FrameWriter::FrameWriter(std::string* out) : out_(*out), begin_(out->size()) {
  out->append(kFrameHeaderBytes, '\0');
}

FrameWriter::~FrameWriter() {
  const std::size_t length = out_.size() - begin_ - kFrameHeaderBytes;
  store_integer(&out_, begin_, static_cast<std::uint32_t>(length));
}

void FrameBuffer::append(std::string_view bytes) {
  bytes_.erase(0, consumed_);
  consumed_ = 0;
  bytes_.append(bytes);
}

FrameStatus FrameBuffer::next(std::string_view* payload) {
  const Frame frame = next_frame(std::string_view(bytes_).substr(consumed_), limits_);
  if (frame.status == FrameStatus::kFrame) {
    *payload = frame.payload;
    consumed_ += frame.bytes;
  }
  return frame.status;
}

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
