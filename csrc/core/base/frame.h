#pragma once

// How a stream of bytes is split into frames, in every protocol here except a TCPStore's: a frame
// is a u32 length and that many bytes. And the messages in the frames of a protocol between
// processes of different versions.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/fields.h"
#include "elastic/status.h"

namespace elastic::core {

inline constexpr std::size_t kFrameHeaderBytes = sizeof(std::uint32_t);

// The least and the greatest valid length.
struct FrameLimits {
  std::size_t min = 0;
  std::size_t max = 0;
};

enum class FrameStatus : std::uint8_t { kFrame, kNeedMore, kViolation };

struct Frame {
  FrameStatus status = FrameStatus::kNeedMore;
  // kFrame: of the frame with its header. kNeedMore: how many bytes are needed.
  std::size_t bytes = 0;
  std::uint32_t length = 0;       // kFrame, kViolation: the received one
  std::string_view payload = {};  // kFrame
};

// The frame at the beginning of `bytes`. No state is kept: after kNeedMore call again with more
// bytes. The length is checked as soon as it is there.
Frame next_frame(std::string_view bytes, const FrameLimits& limits);

// Makes the bytes that are appended during its lifetime a frame.
class FrameWriter {
 public:
  explicit FrameWriter(std::string* out);
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;
  ~FrameWriter();

 private:
  std::string& out_;
  const std::size_t begin_;
};

// Received bytes until their frames are complete, for an end that has no buffer of its own.
class FrameBuffer {
 public:
  explicit FrameBuffer(const FrameLimits& limits) : limits_(limits) {}

  void append(std::string_view bytes);
  // kFrame: `payload` is the next frame's, valid until the next append(). kViolation: the stream
  // is no longer usable.
  FrameStatus next(std::string_view* payload);

 private:
  const FrameLimits limits_;
  std::string bytes_;
  std::size_t consumed_ = 0;
};

// ---- Messages between processes of different versions: sessions and voters.
//
// A message is a frame with a kind, flags and fields. A table has the kinds. A receiver that does
// not know a kind skips the message if its sender has marked it as optional; a required one ends
// the connection.

enum class Need : std::uint8_t { kOptional, kRequired };

inline constexpr std::uint8_t kRequiredFlag = 1;       // other bits are ignored
inline constexpr std::size_t kMessagePrefixBytes = 2;  // kind and flags, within the length

template <std::uint8_t kKindOf, typename M, Need kNeedOf = Need::kRequired>
struct Entry {
  using Message = M;
  static constexpr std::uint8_t kKind = kKindOf;  // never reused for another message
  static constexpr std::uint8_t kFlags = kNeedOf == Need::kRequired ? kRequiredFlag : 0;
};

template <typename... Entries>
struct MessageTable {
  using Message = std::variant<typename Entries::Message...>;
};

enum class DecodeStatus : std::uint8_t {
  kMessage,
  kSkipped,  // a whole frame with an optional message that is unknown here, or malformed
  kNeedMore,
  kViolation,
};

struct DecodeResult {
  DecodeStatus status = DecodeStatus::kNeedMore;
  // kMessage, kSkipped: of the frame. kNeedMore: how many bytes are needed.
  std::size_t bytes = 0;
  // kViolation: why the stream must be closed. kSkipped: why the message was malformed, or OK.
  Status error;
};

struct Protocol {
  std::string_view name;  // in errors: "session"
  std::size_t frame_bytes_max = 0;
};

// Errors, all kPeerViolation.
Status invalid_length(const Protocol& protocol, std::uint32_t length);
Status malformed(const Protocol& protocol, std::uint8_t kind, const FieldReader& reader);

// `fields(writer, message)` visits the fields of each message of the table.
template <typename... Entries, typename Fields>
void append_message(std::string* out, MessageTable<Entries...>,
                    const std::variant<typename Entries::Message...>& message, Fields fields) {
  constexpr std::uint8_t kKinds[] = {Entries::kKind...};
  constexpr std::uint8_t kFlags[] = {Entries::kFlags...};
  const FrameWriter frame(out);
  append_integer(out, kKinds[message.index()]);
  append_integer(out, kFlags[message.index()]);
  FieldWriter writer(out, true);
  std::visit(
      [&](const auto& one) {
        using Message = std::remove_cvref_t<decltype(one)>;
        fields(writer, const_cast<Message&>(one));  // a writer does not modify it
      },
      message);
}

// Decodes the message at the beginning of `bytes`. `read(reader, kind, message)` reads the fields
// of each message of the table, and returns what is wrong with them; `unknown(kind)` is the error
// for a required message that the table does not have.
template <typename... Entries, typename Read, typename Unknown>
DecodeResult decode_message(std::string_view bytes, const Protocol& protocol,
                            MessageTable<Entries...>,
                            std::variant<typename Entries::Message...>* message, Read read,
                            Unknown unknown) {
  const Frame frame = next_frame(bytes, {kMessagePrefixBytes, protocol.frame_bytes_max});
  if (frame.status == FrameStatus::kNeedMore) return {DecodeStatus::kNeedMore, frame.bytes, {}};
  if (frame.status == FrameStatus::kViolation) {
    return {DecodeStatus::kViolation, 0, invalid_length(protocol, frame.length)};
  }
  const auto kind = static_cast<std::uint8_t>(frame.payload[0]);
  const auto flags = static_cast<std::uint8_t>(frame.payload[1]);
  FieldReader reader(frame.payload.substr(kMessagePrefixBytes));
  Status error;
  const auto read_as = [&]<typename Found>(Found) {
    if (kind != Found::kKind) return false;
    error = read(reader, kind, message->template emplace<typename Found::Message>());
    return true;
  };
  if (!(read_as(Entries{}) || ...)) {
    if ((flags & kRequiredFlag) == 0) return {DecodeStatus::kSkipped, frame.bytes, {}};
    error = unknown(kind);
  }
  if (!error.ok() && (flags & kRequiredFlag) == 0) {
    return {DecodeStatus::kSkipped, frame.bytes, std::move(error)};
  }
  if (!error.ok()) return {DecodeStatus::kViolation, 0, std::move(error)};
  return {DecodeStatus::kMessage, frame.bytes, {}};
}

}  // namespace elastic::core
