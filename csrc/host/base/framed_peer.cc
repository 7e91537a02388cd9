#include "host/base/framed_peer.h"

#include "core/session/session_wire.h"
#include "core/succession/voter_wire.h"
#include "host/auth/token_source.h"
#include "os/loop/event_loop.h"
#include "os/net/dialer.h"

namespace elastic::host {
namespace {

// A connection's buffer of up to this size is kept while it is empty.
constexpr std::size_t kKeptBytes = 512;
// The bytes of a frame that has begun count towards the limit of all peers until it is complete.
// The longest one takes this at 2 Mbit/s.
constexpr Duration kFrameTimeout = std::chrono::minutes(1);

}  // namespace

const FrameProtocol kSessionFrames{
    .frames = {"session", session::kFrameBytesMax},
    .greeting_bytes_max = 64 << 10,  // the longest hello of ours fits
    .magic = session::kMagic,
    .no_magic = "the connection is not a session: the magic is wrong",
    .no_greeting = "the first message of a session must be a hello",
    .silent = "it sent no hello",
    .no_token = "the coordinator needs a token, and this node has none",
    .set_token = ": set --token-file (or ELASTIC_TOKEN_FILE) to a file with the token of the job",
    .closed = "the coordinator closed the connection",
    .broke = "the connection to the coordinator broke",
    .does_not_read = "the coordinator does not read",
};

const FrameProtocol kVoterFrames{
    .frames = {"voter", voter::kFrameBytesMax},
    .greeting_bytes_max = voter::kGreetingBytesMax,
    .magic = voter::kMagic,
    .no_magic = "it speaks another protocol",
    .no_greeting = "its first message is not a greeting",
    .silent = "it sent no greeting",
    .no_token = "a node of this job needs a token, and it has none",
    .set_token = ": set the same token on all nodes (--token-file)",
    .closed = "it closed the connection",
    .broke = "the connection broke",
    .does_not_read = "it does not read",
};

void release_later(const std::shared_ptr<PeerGroup>& group, std::shared_ptr<void> peer) {
  struct Retired {
    std::shared_ptr<PeerGroup> group;
    std::shared_ptr<void> peer;  // destroyed first
  };
  group->loop.defer([retired = Retired{group, std::move(peer)}] {});
}

PeerGroup::PeerGroup(os::EventLoop* event_loop, std::size_t unsent_max, std::size_t total_max,
                     std::function<void()> on_pending)
    : loop(*event_loop),
      budget(total_max),
      streams(event_loop, &budget, {.output_bytes_max = unsent_max, .kept_bytes = kKeptBytes},
              std::move(on_pending)) {}

Result<std::shared_ptr<Tokens>> open_tokens(const TokenOptions& options,
                                            std::function<void(const std::string&)> log) {
  if (!options.is_set()) return std::shared_ptr<Tokens>();
  auto source = TokenSource::open(options, std::move(log));
  if (!source.ok()) return source.status();
  return std::shared_ptr<Tokens>(*std::move(source));
}

FramedPeer::FramedPeer(PeerGroup* group, const FrameProtocol& protocol)
    : group_(*group), protocol_(protocol), stream_(&group->streams, this) {}

Status FramedPeer::connect(os::DetachedStream connection) {
  if (Status started = stream_.start(std::move(connection)); !started.ok()) return started;
  local_ = stream_.local();
  remote_ = stream_.remote();
  must_send_magic_ = !awaits_magic_;
  return {};
}

Status FramedPeer::accept(os::DetachedStream connection, const Entrance& entrance) {
  awaits_magic_ = true;
  tokens_ = entrance.tokens;
  if (Status started = connect(std::move(connection)); !started.ok()) return started;
  stream_.set_keep_alive(kKeepAliveInterval);
  stream_.set_deadline(group_.loop.now() + entrance.greeting_timeout);
  pending_ = entrance.pending->add(remote_.host(), [this] { close(); });
  return {};
}

void FramedPeer::greeted() {
  is_greeted_ = true;
  pending_.reset();
  stream_.clear_deadline();
}

void FramedPeer::flush() {
  on_sending();
  stream_.flush();
}

void FramedPeer::close() {
  pending_.reset();
  stream_.close();
}

Duration FramedPeer::round_trip() const {
  return stream_.is_open() ? stream_.round_trip() : Duration::zero();
}

void FramedPeer::write(std::string_view frame) {
  if (std::exchange(must_send_magic_, false)) stream_.write(protocol_.magic);
  stream_.write(frame);
}

void FramedPeer::finish(std::string_view last) {
  if (!is_open()) return;
  on_sending();
  is_finishing_ = true;
  write(last);
  stream_.finish(group_.loop.now() + kFinishTimeout);
}

std::size_t FramedPeer::on_bytes(std::string_view bytes) {
  if (tokens_ != nullptr) {
    begin_tls(bytes);
    return bytes.size();
  }
  std::size_t used = 0;
  if (awaits_magic_) {
    const std::string_view magic = protocol_.magic;
    if (!magic.starts_with(bytes.substr(0, magic.size()))) {
      if (bytes.front() == session::kTlsFirstByte) {  // the reason in clear would not be read
        FramedPeer::reject(token_status("it uses a token, and this node has none"));
      } else {
        reject({StatusCode::kPeerViolation, protocol_.no_magic});
      }
      return bytes.size();
    }
    if (bytes.size() < magic.size()) return 0;
    awaits_magic_ = false;
    used = magic.size();
  }
  while (is_open()) {
    const std::size_t longest =
        is_greeted_ ? protocol_.frames.frame_bytes_max : protocol_.greeting_bytes_max;
    const core::Frame frame =
        core::next_frame(bytes.substr(used), {core::kMessagePrefixBytes, longest});
    if (frame.status == core::FrameStatus::kNeedMore) {
      await_rest(used<bytes.size(), used> 0);
      return used;
    }
    if (frame.status == core::FrameStatus::kViolation) {
      const bool is_valid =
          frame.length > longest && frame.length <= protocol_.frames.frame_bytes_max;
      reject(is_valid ? Status(StatusCode::kPeerViolation, protocol_.no_greeting)
                      : core::invalid_length(protocol_.frames, frame.length));
      break;
    }
    on_frame(bytes.substr(used, frame.bytes));
    used += frame.bytes;
  }
  return bytes.size();
}

void FramedPeer::await_rest(bool has_begun, bool is_another) {
  if (!is_greeted_) return;  // the greeting has a deadline of its own
  if (has_begun && (!is_frame_begun_ || is_another)) {
    stream_.set_deadline(group_.loop.now() + kFrameTimeout);
  } else if (!has_begun && is_frame_begun_) {
    stream_.clear_deadline();
  }
  is_frame_begun_ = has_begun;
}

// The session has received the first bytes before the stream is secured: the stream's own input is
// encrypted from here on.
void FramedPeer::begin_tls(std::string_view bytes) {
  Tokens& tokens = *std::exchange(tokens_, nullptr);
  if (bytes.front() == protocol_.magic.front()) return reject(token_status(protocol_.no_token));
  auto tls = tokens.accept();
  if (!tls.ok()) return FramedPeer::reject(tls.status());
  std::string none;
  if ((*tls)->receive(bytes, &none)) return stream_.secure(*std::move(tls));
  stream_.write((*tls)->output());  // the alert
  stream_.flush();
  FramedPeer::reject(tls_status(**tls));
}

std::optional<PeerIdentity> FramedPeer::proved_identity() const {
  return read_identity(stream_.tls()->identity());
}

void FramedPeer::reject(const Status& why) {
  close();
  on_lost(why);
}

void FramedPeer::on_end(os::Stream::End why, int error) {
  pending_.reset();
  if (!is_finishing_) on_lost(end_status(why, error));
}

Status FramedPeer::end_status(os::Stream::End why, int error) const {
  switch (why) {
    case os::Stream::End::kClosedByPeer: return {StatusCode::kUnavailable, protocol_.closed};
    case os::Stream::End::kBroken: return os::connection_error(protocol_.broke, error);
    case os::Stream::End::kOutputLimit:
    case os::Stream::End::kMemoryLimit: return {StatusCode::kUnavailable, protocol_.does_not_read};
    case os::Stream::End::kDeadline:
      return {StatusCode::kUnavailable,
              is_greeted_ ? "it sent a part of a message, and not the rest" : protocol_.silent};
    case os::Stream::End::kTlsFailed: break;
  }
  return tls_status(*stream_.tls());
}

Status FramedPeer::tls_status(const os::TlsSession& tls) const {
  if (tls.is_established()) {
    return {StatusCode::kUnavailable, protocol_.broke + (": " + tls.error_text())};
  }
  if (tls.error() == os::TlsSession::Error::kUnknownIdentity) {
    return token_status("its token is not valid here");
  }
  return token_status("it does not know the token of this node (" + tls.error_text() + ")");
}

Status FramedPeer::token_status(const std::string& why) const {
  return {StatusCode::kFailedPrecondition, why + protocol_.set_token};
}

}  // namespace elastic::host
