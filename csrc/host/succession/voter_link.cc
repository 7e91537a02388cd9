#include "host/succession/voter_link.h"

#include <algorithm>
#include <chrono>

#include "host/base/connection_limits.h"
#include "os/net/tcp_connect.h"

namespace elastic::host {
namespace {

constexpr char kTlsHandshake = '\x16';  // the first byte of a TLS client

constexpr const char* kSetToken = ": set the same token on all nodes (--token-file)";

}  // namespace

Status VoterLink::end_status(os::Stream::End why, int error) const {
  switch (why) {
    case os::Stream::End::kBroken: return os::connection_error("the connection broke", error);
    case os::Stream::End::kOutputLimit:
    case os::Stream::End::kMemoryLimit: return {StatusCode::kUnavailable, "it does not read"};
    case os::Stream::End::kDeadline: return {StatusCode::kUnavailable, "it sent no greeting"};
    case os::Stream::End::kTlsFailed: {
      const os::TlsSession& tls = *stream_.tls();
      const bool is_unknown = tls.error() == os::TlsSession::Error::kUnknownIdentity;
      return {StatusCode::kFailedPrecondition,
              (is_unknown ? "its token is not valid here"
                          : "it does not know the token of this node (" + tls.error_text() + ")") +
                  kSetToken};
    }
    case os::Stream::End::kClosedByPeer: break;
  }
  return {StatusCode::kUnavailable, "it closed the connection"};
}

// With a token an accepted connection is started twice: its first byte tells whether the peer
// begins with a TLS handshake, or has no token and is sent the reason in clear.
Status VoterLink::start(os::DetachedStream connection) {
  os::expect_liveness(connection.fd.get(), owner_.limits_.silence_max);
  if (owner_.tokens_ != nullptr && (!is_accepted() || !connection.unread.empty())) {
    auto tls = is_accepted() ? owner_.tokens_->accept() : owner_.tokens_->connect(owner_.job_id_);
    if (!tls.ok()) return tls.status();
    connection.tls = *std::move(tls);
  }
  if (Status started = stream_.start(std::move(connection)); !started.ok()) return started;
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

// The peer knows a key of this process; it may be an observer's or another job's.
void VoterLink::on_secured() {
  if (!is_accepted()) return;
  const auto identity = read_identity(stream_.tls()->identity());
  const bool is_any = owner_.job_id_.empty();
  if (!identity || identity->role != PeerRole::kNode ||
      (!is_any && identity->job_id != owner_.job_id_)) {
    refuse(Status(StatusCode::kFailedPrecondition,
                  "its token does not allow it to take part in the job " + owner_.job_id_));
    return;
  }
  job = identity->job_id;
}

void VoterLink::write(const voter::Frame& frame) {
  std::string bytes;
  voter::append(&bytes, frame);
  stream_.write(bytes);
}

void VoterLink::send(std::string_view frame) {
  last_active = ++owner_.activity_;
  stream_.write(voter::payload_head(frame.size()));
  stream_.write(frame);
}

std::size_t VoterLink::on_bytes(std::string_view bytes) {
  std::size_t used = 0;
  if (!has_magic_ && owner_.tokens_ != nullptr && stream_.tls() == nullptr) {
    if (bytes.starts_with(voter::kMagic.front())) {
      refuse(Status(StatusCode::kFailedPrecondition,
                    std::string("a node of this job needs a token, and it has none") + kSetToken));
    } else {
      pending_.reset();
      owner_.adopt(stream_.detach(bytes));
    }
    return bytes.size();
  }
  if (!has_magic_ && !take_magic(bytes, &used)) return used;
  while (stream_.is_open() && !is_finishing_) {
    voter::Frame frame;
    const std::size_t limit = is_greeted_ ? voter::kFrameBytesMax : voter::kGreetingBytesMax;
    const voter::DecodeResult result = voter::decode(bytes.substr(used), limit, &frame);
    if (result.status == voter::DecodeStatus::kNeedMore) return used;
    if (result.status == voter::DecodeStatus::kViolation) {
      fail(result.error);
      break;
    }
    used += result.bytes;
    if (result.status == voter::DecodeStatus::kMessage) on_frame(frame);
  }
  return bytes.size();
}

bool VoterLink::take_magic(std::string_view bytes, std::size_t* used) {
  const std::size_t size = std::min(bytes.size(), voter::kMagic.size());
  if (bytes.substr(0, size) != voter::kMagic.substr(0, size)) {
    *used = bytes.size();
    fail(bytes.starts_with(kTlsHandshake)
             ? Status(StatusCode::kFailedPrecondition,
                      std::string("it uses a token, and this node has none") + kSetToken)
             : Status(StatusCode::kPeerViolation, "it speaks another protocol"));
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
    owner_.sink_.on_frame(id, address, std::get<voter::Payload>(frame).bytes);
  }
}

void VoterLink::on_greeting(const voter::Greeting& greeting) {
  if (is_greeted_) return fail(Status(StatusCode::kPeerViolation, "it sent a second greeting"));
  if (!owner_.job_id_.empty()) {
    job = owner_.job_id_;
  } else if (stream_.tls() == nullptr) {
    job = greeting.job_id;
  }
  const voter::Greeting own{.job_id = job};
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
