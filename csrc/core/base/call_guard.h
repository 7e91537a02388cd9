#pragma once

#include "core/base/check.h"

namespace elastic::core {

// Detects, in builds for development, that a callback destroys the object that calls it.
//
//   const CallGuard::Scope calling(&guard_);
//   sink_.on_frame(frame);
class CallGuard {
 public:
  CallGuard() = default;
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  ~CallGuard() { ELASTIC_DEBUG_CHECK(num_calls_ == 0); }

  class Scope {
   public:
    explicit Scope(CallGuard* guard) : guard_(*guard) { ++guard_.num_calls_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { --guard_.num_calls_; }

   private:
    CallGuard& guard_;
  };

 private:
  int num_calls_ = 0;
};

}  // namespace elastic::core
