#include "elastic/token_options.h"

#include <memory>

#include "host/auth/token_source.h"

namespace elastic {
namespace {

Result<std::shared_ptr<host::TokenSource>> open_source(const TokenOptions& options) {
  return host::TokenSource::open(options, nullptr);
}

}  // namespace

Status check_token(const TokenOptions& options, const std::string& run_id) {
  const auto source = open_source(options);
  if (!source.ok() || run_id.empty()) return source.status();
  return (*source)->check(run_id);
}

Result<std::string> observer_token(const TokenOptions& options, const std::string& run_id) {
  const auto source = open_source(options);
  if (!source.ok()) return source.status();
  return (*source)->current().observer_token(run_id);
}

}  // namespace elastic
