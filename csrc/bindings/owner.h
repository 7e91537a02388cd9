#pragma once

// The native object behind a Python object, which threads may use and close at any time.
//
// A call shares the object, so that close() in another thread does not destroy it, and drops it
// while it does not hold the interpreter's lock: the last owner joins threads that may need it.

#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/convert.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::bindings {

template <typename Object>
class Owner {
 public:
  // `closed`: the error of a call after close().
  Owner(std::unique_ptr<Object> object, Status closed)
      : object_(std::move(object)), closed_(std::move(closed)) {}
  Owner(Owner&&) = default;
  Owner& operator=(Owner&&) = delete;
  ~Owner() { close(); }

  // Returns use(object), without the interpreter's lock. The result has no Python object.
  template <typename Use>
  auto call(Use&& use) const {
    check_open();
    std::shared_ptr<Object> object = object_;
    const WithoutGil release;
    const std::shared_ptr<Object> mine = std::move(object);
    return use(*mine);
  }
  // As call(), for a call that waits until its second argument returns true: use(object,
  // interrupted). close() ends it.
  template <typename Use>
  auto wait(Use&& use) const {
    return call([&](Object& object) {
      return use(object, [is_closed = is_closed_] { return *is_closed || python_signal_raised(); });
    });
  }
  // The next event of an object that has them; nullopt: none before the timeout.
  auto next_event(std::optional<Duration> timeout) const {
    auto event = wait([deadline = to_deadline(timeout)](Object& object, const auto& interrupted) {
      return object.next_event(deadline, interrupted);
    });
    if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    if (!event) check_open();
    return event;
  }
  void check_open() const {
    if (object_ == nullptr) raise_status(closed_);
  }
  // Destroys the object, or lets the calls of other threads do so, which it ends.
  void close() {
    std::shared_ptr<Object> object = std::move(object_);
    if (object == nullptr) return;
    *is_closed_ = true;
    const WithoutGil release;
    const std::shared_ptr<Object> mine = std::move(object);
    mine->wake();
  }

 private:
  std::shared_ptr<Object> object_;  // with the interpreter's lock only
  Status closed_;
  std::shared_ptr<std::atomic<bool>> is_closed_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace elastic::bindings
