#pragma once

// Follows files to which other processes append.
//
// inotify reports that an idle file has grown, which is read at once. A file that grows is read
// every kReadInterval, and inotify is armed again when several reads find nothing new: a process
// that writes many small pieces causes one event, and does not pay for further ones. Idle files
// cost nothing.
//
// Loop thread only.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/base/call_guard.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/registration.h"

namespace elastic::os {

class LogTail final : private FdHandler {
 public:
  using FileId = int;
  static constexpr Duration kReadInterval = std::chrono::milliseconds(2);

  // Called on the loop thread; may pause and resume the tail, and must not destroy it.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void on_bytes(FileId file, std::string_view bytes) = 0;
    // After close(): all content up to the close was delivered.
    virtual void on_closed(FileId file) = 0;
  };

  // `loop` and `observer` outlive the tail.
  static Result<std::unique_ptr<LogTail>> create(EventLoop* loop, Observer* observer);
  LogTail(const LogTail&) = delete;
  LogTail& operator=(const LogTail&) = delete;
  ~LogTail() override;

  // Follows an existing file from its beginning.
  Result<FileId> follow(const std::string& path);
  // Delivers the current content of the file, then stops following it.
  void close(FileId file);
  // A paused tail reads nothing.
  void pause() { is_paused_ = true; }
  void resume();

 private:
  struct File {
    UniqueFd fd;
    std::uint64_t offset = 0;
    std::optional<std::uint64_t> end;  // closing: where to stop
    bool must_arm = false;             // inotify reports no further change
    int watch = -1;                    // inotify's; -1: none
    int empty_turns = 0;               // since it grew
  };

  LogTail(EventLoop* loop, Observer* observer, UniqueFd inotify);
  void on_ready(std::uint32_t events) override;
  bool arm(FileId id, File* file);
  void disarm(File* file);
  void read_turn();
  enum class ReadOutcome : std::uint8_t { kMore, kSome, kEnd };
  void read(const std::set<FileId>& turn);
  ReadOutcome read_some(FileId id, File* file);
  static bool was_truncated(File* file);

  EventLoop* const loop_;
  Observer* const observer_;
  core::CallGuard guard_;
  UniqueFd inotify_;
  std::map<FileId, File> files_;
  FileId last_id_ = 0;
  std::map<int, FileId> watched_;  // by inotify's watch descriptor, which is never reused
  std::set<FileId> unread_;        // files that may have unread content
  bool is_paused_ = false;
  Timer turn_;
  Watch watch_;
};

}  // namespace elastic::os
