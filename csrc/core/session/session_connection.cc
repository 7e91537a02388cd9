#include "core/session/session_connection.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/text.h"

namespace elastic::core {

SessionConnection::SessionConnection(std::vector<std::string> endpoints, std::uint64_t seed)
    : num_listed_(endpoints.size()),
      endpoints_(std::move(endpoints)),
      rng_(seed),
      errors_(num_listed_) {
  ELASTIC_CHECK(!endpoints_.empty());
}

SessionReaction SessionConnection::apply(SessionInput input) {
  const SessionEdge& edge = edge_of(state_, input);
  state_ = edge.next;
  return edge.reaction;
}

bool SessionConnection::is_open() const {
  return state_ != SessionState::kIdle && state_ != SessionState::kSearching &&
         state_ != SessionState::kLost;
}

bool SessionConnection::is_ready() const {
  return state_ == SessionState::kReady || state_ == SessionState::kReadySilent;
}

// ---- Attempts.

void SessionConnection::start_search(const Status& why, bool keeps_backoff) {
  set_error(why);
  if (!keeps_backoff) reset_backoff();
}

void SessionConnection::set_error(const Status& why) {
  last_error_ = why;
  if (endpoint_ < num_listed_) errors_[endpoint_] = why.message();
}

Duration SessionConnection::next_attempt() {
  endpoint_ = (endpoint_ + 1) % endpoints_.size();
  if (!backoff_) backoff_.emplace(BackoffOptions{}, &rng_);
  return backoff_->next();
}

void SessionConnection::adopted() {
  was_open_ = true;
  has_answered_ = false;
}

void SessionConnection::redirect(std::string address) {
  endpoint_ = num_listed_;
  if (endpoints_.size() > num_listed_ && endpoints_.back() == address) return;
  endpoints_.resize(num_listed_);
  endpoints_.push_back(std::move(address));
  reset_backoff();
}

// ---- The coordinator.

void SessionConnection::answered(std::uint64_t term) {
  has_answered_ = true;
  leaving_reason_.clear();
  saw_term(term);
}

void SessionConnection::saw_term(std::uint64_t term) { term_ = std::max(term_, term); }

// ---- Messages.

// The current endpoint; of several all, because each of them was tried.
std::string SessionConnection::endpoint_name() const {
  if (num_listed_ == 1) return endpoints_[endpoint_];
  std::string names = endpoints_[0];
  for (std::size_t i = 1; i < num_listed_; ++i) names += ", " + endpoints_[i];
  return names;
}

// If the coordinator sent a reason before it ended, that reason replaces the connection error.
std::string SessionConnection::error() const {
  if (!leaving_reason_.empty()) return leaving_reason_;
  if (num_listed_ == 1) return std::string(last_error_.message());
  std::string all;
  for (std::size_t i = 0; i < num_listed_; ++i) {
    if (errors_[i].empty()) continue;
    all += (all.empty() ? "" : "; ") + endpoints_[i] + ": " + errors_[i];
  }
  return all;
}

std::string SessionConnection::log_outage() {
  is_outage_logged_ = true;
  const std::string why = error().empty() ? "" : ": " + error();
  return was_found()
             ? "the coordinator at " + endpoint_name() + " cannot be reached" + why + ", gives up"
             : "waiting for a coordinator at " + endpoint_name() + why + ", gives up";
}

std::optional<std::string> SessionConnection::log_recovery() {
  if (!std::exchange(is_outage_logged_, false)) return std::nullopt;
  return "the coordinator at " + endpoints_[endpoint_] + " answers again";
}

std::string SessionConnection::alone_message(Duration time) const {
  return "the coordinator at " + endpoints_[endpoint_] +
         " has reached no majority of its voters for " + duration_text(time);
}

std::string SessionConnection::lost_message(Duration limit) const {
  const std::string why = error().empty() ? "no reply" : error();
  return was_found() ? "the coordinator at " + endpoint_name() + " was not reached for " +
                           duration_text(limit) + ": " + why
                     : "no coordinator was found at " + endpoint_name() + " within " +
                           duration_text(limit) + ": " + why;
}

}  // namespace elastic::core
