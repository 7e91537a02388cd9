#include "host/auth/token_source.h"

#include <chrono>
#include <utility>

namespace elastic::host {
namespace {

// What a connection waits for a file server that does not answer, once for each time that it is
// away.
constexpr Duration kReadWaitMax = std::chrono::milliseconds(200);

}  // namespace

TokenSource::TokenSource(const TokenOptions& options, std::function<void(const std::string&)> log)
    : name_(options.file.empty() ? "the token" : "the token file " + options.file),
      log_(std::move(log)),
      file_(std::make_shared<os::PrivateFile>("the token file", options.file)),
      has_file_(!options.file.empty()) {}

Result<std::shared_ptr<TokenSource>> TokenSource::open(
    const TokenOptions& options, std::function<void(const std::string&)> log) {
  if (Status missing = os::check_tls(); !missing.ok()) return missing;
  std::shared_ptr<TokenSource> self(new TokenSource(options, std::move(log)));
  if (self->has_file_) {
    if (Status fault = self->refresh(); !fault.ok()) return fault;
    self->is_remote_ = os::is_on_network(options.file);
    return self;
  }
  auto tokens = TokenList::parse(options.text);
  if (!tokens.ok()) {
    return Status(tokens.status().code(),
                  self->name_ + " " + std::string(tokens.status().message()));
  }
  self->tokens_ = *std::move(tokens);
  return self;
}

Result<std::optional<std::string>> TokenSource::read() {
  const auto read = [file = file_] { return file->read_if_changed(TokenList::kBytesMax); };
  if (!is_remote_) return read();
  if (reader_ == nullptr) {
    auto started = BoundedReader::start(read);
    if (!started.ok()) return read();
    reader_ = *std::move(started);
  }
  return reader_->read_within(kReadWaitMax);
}

Status TokenSource::refresh() {
  auto content = read();
  if (!content.ok()) return content.status();
  if (!content->has_value()) return {};
  auto tokens = TokenList::parse(**content);
  if (!tokens.ok()) {
    return {tokens.status().code(), name_ + " " + std::string(tokens.status().message())};
  }
  tokens_ = *std::move(tokens);
  return {};
}

const TokenList& TokenSource::current() {
  if (!has_file_) return tokens_;
  if (const Status fault = refresh(); !fault.ok() && log_) {
    log_(std::string(fault.message()) + "; the tokens that were read before stay in force");
  }
  return tokens_;
}

Status TokenSource::check(const std::string& job_id) {
  const Status fault = current().client_key(job_id).status();
  return fault.ok() ? fault : Status(fault.code(), name_ + " " + std::string(fault.message()));
}

Result<std::unique_ptr<os::TlsSession>> TokenSource::connect(const std::string& job_id) {
  auto key = current().client_key(job_id);
  if (!key.ok()) {
    return Status(key.status().code(), name_ + " " + std::string(key.status().message()));
  }
  return os::TlsSession::connect(std::move(key->identity), key->key);
}

Result<std::unique_ptr<os::TlsSession>> TokenSource::accept() {
  return os::TlsSession::accept(
      [this](std::string_view identity) { return current().find(identity); });
}

}  // namespace elastic::host

namespace elastic {

Status check_token(const TokenOptions& options, const std::string& run_id) {
  const auto source = host::TokenSource::open(options, nullptr);
  if (!source.ok() || run_id.empty()) return source.status();
  return (*source)->check(run_id);
}

Result<std::string> observer_token(const TokenOptions& options, const std::string& run_id) {
  const auto source = host::TokenSource::open(options, nullptr);
  if (!source.ok()) return source.status();
  return (*source)->current().observer_token(run_id);
}

}  // namespace elastic
