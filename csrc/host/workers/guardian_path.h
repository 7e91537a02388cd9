#pragma once

// The path of the guardian's executable.

#include <string>

#include "elastic/status.h"

namespace elastic::host {

// The option if it is set. Else relative to the file that contains this library (a wheel's
// bin/elastic-guardian, an installation's ../libexec/elastic/elastic-guardian), then the install
// path of the build. kNotFound names every path that was tried.
Result<std::string> find_guardian(const std::string& option);

}  // namespace elastic::host
