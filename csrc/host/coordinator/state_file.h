#pragma once

// Writes a state to a file on a separate thread: always the newest that it was given. A failed
// write is repeated until it succeeds or a newer state is given.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "elastic/status.h"

namespace elastic::host {

// One code for every error of the state file: in each case only another file helps.
Status state_file_error(const Status& cause, const std::string& path);

class StateFile {
 public:
  // `on_error` is called on that thread for the first of several failed writes in a row.
  static Result<std::unique_ptr<StateFile>> open(std::string path,
                                                 std::function<void(const Status&)> on_error);
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;
  ~StateFile();  // writes the newest state, in one attempt

  // `written`: called on that thread when this state, or a newer one, is in the file.
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

}  // namespace elastic::host
