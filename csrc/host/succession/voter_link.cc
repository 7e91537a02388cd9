#include "host/succession/voter_link.h"

#include <algorithm>
#include <chrono>

#include "os/net/tcp_connect.h"

namespace elastic::host {
namespace {

// How long a rejected peer may take to read the reason.
constexpr Duration kFinishTimeout = std::chrono::seconds(2);
// Keep-alive probes find a host that vanished, also when nothing is sent to it.
constexpr Duration kKeepAliveInterval = std::chrono::seconds(5);

Status end_status(os::Stream::End why, int error) {
  switch (why) {
    case os::Stream::End::kBroken: return os::connection_error("the connection broke", error);
    case os::Stream::End::kOutputLimit:
    case os::Stream::End::kMemoryLimit: return {StatusCode::kUnavailable, "it does not read"};
    case os::Stream::End::kDeadline: return {StatusCode::kUnavailable, "it sent no greeting"};
    case os::Stream::End::kTlsFailed:  // not in use here: a token excludes voters
    case os::Stream::End::kClosedByPeer: break;
  }
  return {StatusCode::kUnavailable, "it closed the connection"};
}

}  // namespace

Status VoterLink::start(os::UniqueFd fd) {
  os::expect_liveness(fd.get(), owner_.limits_.silence_max);
  if (Status started = stream_.start({.fd = std::move(fd)}); !started.ok()) return started;
  remote_host_ = stream_.remote().host();
  stream_.set_keep_alive(kKeepAliveInterval);
  stream_.set_deadline(owner_.loop_->now() + owner_.limits_.greeting_timeout);
  if (is_accepted()) {
    pending_ = owner_.pending_.add(remote_host_, [this] { close(); });
    return {};
  }
  has_magic_ = true;  // only the side that connects sends it
  stream_.write(voter::kMagic);
  write(voter::Greeting{.job_id = owner_.job_id_});
  return {};
}

void VoterLink::write(const voter::Frame& frame) {
  std::string bytes;
  voter::append(&bytes, frame);
  stream_.write(bytes);
}

void VoterLink::send(std::string_view frame) {
  std::string bytes;
  voter::append_payload(&bytes, frame);
  last_active = ++owner_.activity_;
  stream_.write(bytes);
}

std::size_t VoterLink::on_bytes(std::string_view bytes) {
  std::size_t used = 0;
  if (!has_magic_ && !take_magic(bytes, &used)) return used;
  while (stream_.is_open() && !is_finishing_) {
    voter::Frame frame;
    const std::size_t limit = is_greeted_ ? voter::kFrameBytesMax : voter::kGreetingBytesMax;
    const voter::DecodeResult result = voter::decode(bytes.substr(used), limit, &frame);
    if (result.kind == voter::DecodeResult::Kind::kNeedMore) return used;
    if (result.kind == voter::DecodeResult::Kind::kViolation) {
      fail(result.error);
      break;
    }
    used += result.bytes;
    if (result.kind == voter::DecodeResult::Kind::kFrame) on_frame(frame);
  }
  return bytes.size();
}

bool VoterLink::take_magic(std::string_view bytes, std::size_t* used) {
  const std::size_t size = std::min(bytes.size(), voter::kMagic.size());
  if (bytes.substr(0, size) != voter::kMagic.substr(0, size)) {
    *used = bytes.size();
    fail(Status(StatusCode::kPeerViolation, "it speaks another protocol"));
    return false;
  }
  has_magic_ = size == voter::kMagic.size();
  if (has_magic_) *used = size;
  return has_magic_;
}

void VoterLink::on_frame(const voter::Frame& frame) {
  if (const auto* refused = std::get_if<voter::Refused>(&frame)) {
    fail(Status(StatusCode::kFailedPrecondition, "it refused: " + refused->reason));
  } else if (const auto* greeting = std::get_if<voter::Greeting>(&frame)) {
    on_greeting(*greeting);
  } else if (!is_greeted_) {
    fail(Status(StatusCode::kPeerViolation, "its first message is not a greeting"));
  } else {
    last_active = ++owner_.activity_;
    owner_.sink_.on_frame(id, std::get<voter::Payload>(frame).bytes);
  }
}

void VoterLink::on_greeting(const voter::Greeting& greeting) {
  if (is_greeted_) return fail(Status(StatusCode::kPeerViolation, "it sent a second greeting"));
  const voter::Greeting own{.job_id = owner_.job_id_};
  if (Status fault = voter::check_greeting(greeting, own); !fault.ok()) return refuse(fault);
  if (is_accepted()) write(own);
  pending_.reset();
  stream_.clear_deadline();
  is_greeted_ = true;
  last_active = ++owner_.activity_;
  owner_.greeted(this);
}

// Sends the reason, so that the other side can report it.
void VoterLink::refuse(const Status& why) {
  if (!is_accepted()) return fail(why);
  write(voter::Refused{std::string(why.message())});
  pending_.reset();
  is_finishing_ = true;
  stream_.finish(owner_.loop_->now() + kFinishTimeout);
  owner_.closed(this, why);
}

void VoterLink::fail(const Status& why) {
  close();
  owner_.closed(this, why);
}

void VoterLink::on_end(os::Stream::End why, int error) {
  pending_.reset();
  if (!is_finishing_) owner_.closed(this, end_status(why, error));
}

}  // namespace elastic::host
