#include "core/gate/probe_exchange.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/text.h"

// Theory of operation. The shortest of several round trips is the latency: what else the hosts do
// makes others longer. A transfer that is not over at its limit has the rate of what has arrived
// until then. The other side stops by itself, because nothing is acknowledged any more. The window
// grows with what was acknowledged: on a slow network acknowledgements would wait behind a large
// one.

namespace elastic::gate {
namespace {

const std::string& zeros() {
  static const std::string kZeros(kProbePiece, '\0');
  return kZeros;
}

double rate_of(std::uint64_t bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return static_cast<double>(bytes) / std::max(seconds, 1e-6);
}

}  // namespace

std::string encode(const ProbeMessage& message) {
  std::string bytes;
  core::ByteWriter out(&bytes);
  out.integer(static_cast<std::uint8_t>(message.kind));
  out.integer(message.run);
  out.integer(message.number);
  bytes.append(message.data);
  return bytes;
}

std::optional<ProbeMessage> decode_probe(std::string_view bytes) {
  core::ByteReader in(bytes);
  const auto kind = in.integer<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(ProbeKind::kPing) ||
      kind > static_cast<std::uint8_t>(ProbeKind::kTaken)) {
    return std::nullopt;
  }
  ProbeMessage message{.kind = static_cast<ProbeKind>(kind)};
  message.run = in.integer<std::uint64_t>();
  message.number = in.integer<std::uint64_t>();
  message.data = in.take(in.left());
  const bool has_data = message.kind == ProbeKind::kPiece;
  if (!in.ok() || message.data.empty() == has_data || message.data.size() > kProbePiece) {
    return std::nullopt;
  }
  return message;
}

// ---- The transfer.

void ProbeSender::begin(std::uint64_t run, std::uint64_t bytes) {
  *this = {};
  run_ = run;
  bytes_ = bytes;
}

bool ProbeSender::taken(std::uint64_t bytes) {
  if (bytes > sent_ || bytes < taken_) return false;
  taken_ = bytes;
  return true;
}

void ProbeSender::send(std::vector<std::string>* out) {
  const std::uint64_t window = std::min(kProbePiece + taken_ / 2, kProbeWindow);
  while (sent_ < bytes_ && sent_ - taken_ < window) {
    const std::uint64_t size = std::min(kProbePiece, bytes_ - sent_);
    out->push_back(encode({.kind = ProbeKind::kPiece,
                           .run = run_,
                           .data = std::string_view(zeros()).substr(0, size)}));
    sent_ += size;
  }
}

// ---- The side that answers.

std::vector<std::string> ProbeServer::receive(const ProbeMessage& message) {
  std::vector<std::string> out;
  if (message.kind == ProbeKind::kPing) {
    out.push_back(encode({.kind = ProbeKind::kPong, .run = message.run, .number = message.number}));
    return out;
  }
  if (message.kind == ProbeKind::kBegin) {
    if (has_begun_ || message.number > kProbeBytes) return out;  // one transfer for a connection
    has_begun_ = true;
    run_ = message.run;
    sender_.begin(run_, message.number);
    sender_.send(&out);
  } else if (has_begun_ && message.run == run_ && message.kind == ProbeKind::kPiece) {
    received_ += message.data.size();
    if (received_ > kProbeBytes) return out;
    out.push_back(encode({.kind = ProbeKind::kTaken, .run = run_, .number = received_}));
  } else if (has_begun_ && message.run == run_ && message.kind == ProbeKind::kTaken) {
    if (sender_.taken(message.number)) sender_.send(&out);
  }
  return out;
}

// ---- The side that measures.

ProbeClient::ProbeClient(std::uint64_t run, Duration limit, Instant now)
    : run_(run), limit_(limit), until_(add_saturating(now, limit)) {
  ping(now);
}

std::optional<Instant> ProbeClient::next_deadline() const {
  if (result_) return std::nullopt;
  if (!began_) return until_;
  return std::min(until_, *began_ + kProbeTransferLimit);
}

void ProbeClient::ping(Instant now) {
  pinged_ = now;
  out_.push_back(encode({.kind = ProbeKind::kPing, .run = run_, .number = ++pings_}));
}

void ProbeClient::receive(const ProbeMessage& message, Instant now) {
  if (result_ || message.run != run_) return;
  switch (message.kind) {
    case ProbeKind::kPong: return on_pong(message.number, now);
    case ProbeKind::kPiece:
      if (!began_ || received_in_) return;
      received_ += message.data.size();
      out_.push_back(encode({.kind = ProbeKind::kTaken, .run = run_, .number = received_}));
      break;
    case ProbeKind::kTaken:
      if (!began_ || !sender_.taken(message.number)) return;
      sender_.send(&out_);
      break;
    case ProbeKind::kPing:
    case ProbeKind::kBegin: return;
  }
  check_transfer(now);
}

void ProbeClient::on_pong(std::uint64_t number, Instant now) {
  if (began_ || number != pings_) return;
  // The first one includes what opens the connection.
  if (!pings_until_) {
    pings_until_ = now + kProbePingsLimit;
    return ping(now);
  }
  latency_ = std::min(latency_.value_or(Duration::max()), now - pinged_);
  if (pings_ <= kProbePings && now < *pings_until_) return ping(now);
  begin_transfer(now);
}

void ProbeClient::begin_transfer(Instant now) {
  began_ = now;
  out_.push_back(encode({.kind = ProbeKind::kBegin, .run = run_, .number = kProbeBytes}));
  sender_.begin(run_, kProbeBytes);
  sender_.send(&out_);
}

void ProbeClient::check_transfer(Instant now) {
  if (sender_.is_over() && !sent_in_) sent_in_ = now - *began_;
  if (received_ >= kProbeBytes && !received_in_) received_in_ = now - *began_;
  if ((sent_in_ && received_in_) || now >= *next_deadline()) end_transfer(now);
}

void ProbeClient::end_transfer(Instant now) {
  const double sent = rate_of(sender_.taken(), sent_in_.value_or(now - *began_));
  const double received = rate_of(received_, received_in_.value_or(now - *began_));
  if (sender_.taken() == 0 || received_ == 0) {
    const char* const direction = received_ > 0 ? "to it " : sender_.taken() > 0 ? "from it " : "";
    return fail("it answers, and no larger packet " + std::string(direction) +
                "arrives: compare the MTU of both hosts and of the way between them");
  }
  result_ = ProbeResult{true, std::min(sent, received), *latency_, ""};
}

void ProbeClient::tick(Instant now) {
  const auto deadline = next_deadline();
  if (!deadline || now < *deadline) return;
  if (began_) return end_transfer(now);
  fail("no answer within " + core::duration_text(limit_));
}

void ProbeClient::lost(const std::string& why) {
  if (!result_) fail(why);
}

void ProbeClient::fail(std::string error) { result_ = ProbeResult{false, 0, {}, std::move(error)}; }

}  // namespace elastic::gate
