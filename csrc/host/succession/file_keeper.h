#pragma once

// The keeper of the jobs with one voter at a coordinator with a state file: one file has them all.
// What a job proposes is in force when it is in the file (R3 of docs/rendezvous.md).

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "elastic/status.h"
#include "os/file/file.h"
#include "os/loop/registration.h"

namespace elastic::host {

// One code for every error of the state file: in each case only another file helps.
Status state_file_error(const Status& cause, const std::string& path);

// Held while a coordinator uses the file: of <path>.lock, which stays. An error: another one uses
// it. nullopt: the file system has no locks.
Result<std::optional<os::FileLock>> lock_state_file(const std::string& path);

// Writes a state to a file on a separate thread: always the newest that it was given. A failed
// write is repeated until it succeeds or a newer state is given.
class StateFile {
 public:
  // `on_error` is called on that thread for the first of several failed writes in a row.
  static Result<std::unique_ptr<StateFile>> open(std::string path,
                                                 std::function<void(const Status&)> on_error);
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;
  ~StateFile();  // writes the newest state, in one attempt

  // `written`: called on that thread when this state, or a newer one, is in the file; in the order
  // of the calls.
  void put(std::string bytes, std::function<void()> written = {});

 private:
  StateFile(std::string path, std::function<void(const Status&)> on_error)
      : path_(std::move(path)), on_error_(std::move(on_error)) {}
  void run();

  const std::string path_;
  const std::function<void(const Status&)> on_error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> next_;             // guarded by mutex_
  std::vector<std::function<void()>> waiting_;  // for next_; guarded by mutex_
  bool closing_ = false;                        // guarded by mutex_
  std::thread thread_;
};

// Loop thread only.
class FileKeeper {
 public:
  // The state of all jobs but those that were released.
  using Encode = std::function<std::string()>;

  // Replaces the file, and reports the error if that fails. `log`: receives why the file cannot be
  // written later. `loop` outlives the object.
  static Result<std::unique_ptr<FileKeeper>> open(os::EventLoop* loop, const std::string& path,
                                                  Encode encode,
                                                  std::function<void(const std::string&)> log);
  FileKeeper(const FileKeeper&) = delete;
  FileKeeper& operator=(const FileKeeper&) = delete;

  // `in_force`: called on the loop when the present state of the job is in the file, unless the job
  // was released: then its next keeper receives the proposal.
  void propose(const std::string& job, std::function<void()> in_force);
  // The job gets another keeper. `released`: called on the loop when the file shows it no more, so
  // that a restart cannot restore an authority that has moved on (R9).
  void release(const std::string& job, std::function<void()> released);
  bool is_releasing(const std::string& job) const { return releasing_.contains(job); }
  // What was not proposed, such as sessions: in a moment, or now.
  void store_later();
  void store();

 private:
  FileKeeper(os::EventLoop* loop, Encode encode);
  void write(std::function<void()> written);

  os::EventLoop& loop_;
  const Encode encode_;
  std::string stored_;  // the last state that was given to the file
  std::set<std::string, std::less<>> releasing_;
  os::Timer timer_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<StateFile> file_;
};

}  // namespace elastic::host
