#pragma once

// Reads that may block without limit, for a thread that must not: stat(2) of a file on a network
// file system whose server is away.
//
// A thread reads. The caller waits for it for a short time, and if it does not answer, not again
// until it has answered.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/loop/thread.h"

namespace elastic::host {

class BoundedReader {
 public:
  using Content = Result<std::optional<std::string>>;  // nullopt: it has not changed

  // `read` owns whatever it uses: it may outlive the object. kResourceExhausted: there is no
  // thread.
  static Result<std::unique_ptr<BoundedReader>> start(std::function<Content()> read);
  BoundedReader(const BoundedReader&) = delete;
  BoundedReader& operator=(const BoundedReader&) = delete;
  ~BoundedReader();  // does not wait for a read that blocks

  // Reads now, and returns the newest content, or fault, that was not returned before. nullopt also
  // if there is no answer within `limit`.
  Content read_within(Duration limit);

 private:
  struct Shared;
  BoundedReader(std::shared_ptr<Shared> shared, os::DetachableThread thread)
      : shared_(std::move(shared)), thread_(std::move(thread)) {}

  const std::shared_ptr<Shared> shared_;
  os::DetachableThread thread_;
};

}  // namespace elastic::host
