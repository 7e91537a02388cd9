#pragma once

// How a stream of bytes is split into messages, in every protocol here except a TCPStore's: a
// frame is a u32 length and that many bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace elastic::core
