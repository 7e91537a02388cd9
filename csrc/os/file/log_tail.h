#pragma once

// Follows files that others append to, by inotify: nothing is polled.
//
// Loop thread only.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::os {

class LogTail final : private EventLoop::FdHandler {
 public:
  using FileId = int;

  // Told on the loop thread; may pause and resume the tail, and must not destroy it.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void on_bytes(FileId file, std::string_view bytes) = 0;
    // After close(): everything that the file then held was given.
    virtual void on_closed(FileId file) = 0;
  };

  // `loop` and `observer` outlive the tail.
  static Result<std::unique_ptr<LogTail>> create(EventLoop* loop, Observer* observer);
  LogTail(const LogTail&) = delete;
  LogTail& operator=(const LogTail&) = delete;
  ~LogTail() override;

  // Follows an existing file from its beginning.
  Result<FileId> follow(const std::string& path);
  // What the file holds now is still given; then it is forgotten.
  void close(FileId file);
  // While paused nothing is read: the files keep it.
  void pause() { is_paused_ = true; }
  void resume();

 private:
  struct File {
    UniqueFd fd;
    std::uint64_t offset = 0;
    std::optional<std::uint64_t> end;  // closing: where to stop
  };

  LogTail(EventLoop* loop, Observer* observer, UniqueFd inotify);
  void on_ready(std::uint32_t events) override;
  void read_turn();
  enum class Found : std::uint8_t { kMore, kEnd };
  Found read_some(FileId id, File* file);

  EventLoop* const loop_;
  Observer* const observer_;
  UniqueFd inotify_;
  std::map<FileId, File> files_;  // by inotify's watch descriptor, which is never used twice
  std::set<FileId> unread_;       // may have more than was read
  bool is_paused_ = false;
  EventLoop::Timer turn_;
  EventLoop::Watch watch_;
};

}  // namespace elastic::os
