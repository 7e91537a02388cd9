#include "elastic/observer.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "core/succession/voter_wire.h"
#include "host/auth/token_source.h"
#include "host/succession/job_voter.h"
#include "host/succession/voter_links.h"
#include "os/base/process.h"
#include "os/loop/clock.h"
#include "os/loop/thread.h"
#include "os/loop/wait.h"
#include "os/net/address.h"

namespace elastic {
namespace {

// A command that was lost with its connection is sent again; the voter carries it out once.
constexpr Duration kRepeatInterval = std::chrono::seconds(1);

class OverrideCommand {
 public:
  OverrideCommand(const OverrideOptions& options, std::shared_ptr<host::TokenSource> tokens,
                  os::Notifier changed, os::LoopThread* thread)
      : options_(options),
        name_(host::join_address(options.host, options.port)),
        command_{os::random_seed(), false},
        self_{os::random_seed(), os::random_seed()},
        changed_(std::move(changed)),
        thread_(*thread),
        links_(&thread->loop(), options.run_id, std::move(tokens), {},
               {.on_frame = [this](auto, const std::string&,
                                   std::string_view frame) { on_frame(frame); },
                .on_lost = [this](const std::string&, const Status& why) { on_lost(why); },
                .log = [](const std::string&) {}}),
        timer_(&thread->loop(), [this] { send(); }) {}

  void start() {
    auto lookup = os::NameLookup::start(&thread_.loop(), options_.host, options_.port,
                                        [this](const auto& found) {
                                          if (!found.ok()) return finish(found.status());
                                          address_ = found->front().text();
                                          send();
                                        });
    if (!lookup.ok()) return finish(lookup.status());
    lookup_ = *std::move(lookup);
  }

  Result<OverrideAnswer> wait(const std::function<bool()>& interrupted) {
    const Instant deadline = add_saturating(os::monotonic_now(), options_.timeout);
    const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (answer_) return *answer_;
      }
      if (Status waited = changed_.wait(limits); !waited.ok()) {
        if (waited.code() != StatusCode::kDeadlineExceeded) return waited;
        return Status(StatusCode::kDeadlineExceeded,
                      "the voter at " + name_ + " has not answered the command");
      }
    }
  }

 private:
  void send() {
    timer_.arm(add_saturating(thread_.loop().now(), kRepeatInterval));
    links_.send(0, address_,
                succession::encode_frame({options_.run_id, self_, NodeId{}, command_}));
  }

  void on_frame(std::string_view bytes) {
    const auto frame = succession::decode_frame(bytes);
    const auto* reply = frame.ok() ? std::get_if<succession::OverrideReply>(&frame->body) : nullptr;
    if (reply == nullptr || reply->nonce != command_.nonce) return;
    finish(OverrideAnswer{reply->is_done, reply->text});
  }

  void on_lost(const Status& why) {
    finish(Status(why.code(), "the voter at " + name_ + ": " + std::string(why.message())));
  }

  void finish(Result<OverrideAnswer> answer) {
    timer_.disarm();
    {
      const std::lock_guard lock(mutex_);
      if (!answer_) answer_ = std::move(answer);
    }
    changed_.notify();
  }

  const OverrideOptions options_;
  const std::string name_;  // of the voter's address, for messages
  const succession::Override command_;
  const NodeId self_;
  os::Notifier changed_;
  os::LoopThread& thread_;

  // Loop thread only.
  host::VoterLinks links_;
  os::EventLoop::Timer timer_;
  std::unique_ptr<os::NameLookup> lookup_;
  std::string address_;

  std::mutex mutex_;
  std::optional<Result<OverrideAnswer>> answer_;  // guarded by mutex_
};

}  // namespace

Result<OverrideAnswer> override_coordinator(const OverrideOptions& options,
                                            const std::function<bool()>& interrupted) {
  std::shared_ptr<host::TokenSource> tokens;
  if (options.token.is_set()) {
    auto opened = host::TokenSource::open(options.token, nullptr);
    if (!opened.ok()) return opened.status();
    tokens = *std::move(opened);
  }
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-over");
  if (!thread.ok()) return thread.status();
  std::unique_ptr<OverrideCommand> command;
  (*thread)->call([&] {
    command = std::make_unique<OverrideCommand>(options, std::move(tokens), *std::move(notifier),
                                                thread->get());
    command->start();
  });
  auto answer = command->wait(interrupted);
  (*thread)->call([&] { command.reset(); });
  return answer;
}

}  // namespace elastic
