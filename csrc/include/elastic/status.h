#pragma once

// Errors as values.
//
// Status is a code and one sentence ("what, where: cause"); success is one null pointer. Result<T>
// is a Status or a T, with a subset of std::expected's interface. Both are values without shared
// mutable state.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "elastic/export.h"

namespace elastic {

// A code states what the caller can do next, not where the error occurred.
enum class StatusCode : unsigned char {
  kOk,
  kInvalidArgument,     // the caller passed an invalid value; do not retry
  kDeadlineExceeded,    // the deadline passed first
  kUnavailable,         // the peer or resource is unavailable now; retrying may help
  kNotFound,            // the key, queue element or file does not exist
  kFailedPrecondition,  // invalid in this state (closed, used after fork, already running)
  kAborted,             // superseded by a later round or request
  kPeerViolation,       // the peer violated the protocol; the connection is unusable
  kResourceExhausted,   // a limit was reached (descriptors, memory, a configured bound)
  kCancelled,           // the caller interrupted the call
  kInternal,            // an error in this library
};

ELASTIC_EXPORT std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message)
      : rep_(code == StatusCode::kOk ? nullptr
                                     : std::make_shared<const Rep>(Rep{code, std::move(message)})) {
  }

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // Empty for OK. Begins in lower case and has no full stop.
  std::string_view message() const { return rep_ ? std::string_view(rep_->message) : ""; }

  // The same status with "<context>: " before its message; OK stays OK.
  Status with_context(std::string_view context) const {
    if (ok()) return {};
    return {rep_->code, std::string(context) + ": " + rep_->message};
  }

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;  // shared between copies of one immutable error
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}       // NOLINT: implicit, as std::expected
  Result(Status error) : state_(std::move(error)) {}  // NOLINT: requires !error.ok()

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  // REQUIRES: ok().
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::get<T>(std::move(state_)); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace elastic
