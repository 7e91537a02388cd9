#pragma once

// Where the guardian's executable is.

#include <string>

#include "elastic/status.h"

namespace elastic::host {

// The option if it is set; else beside the file that holds this library's code (a wheel's
// bin/elastic-guardian, an installation's ../libexec/elastic/elastic-guardian), then the place that
// it was installed to. kNotFound names every place that was tried.
Result<std::string> find_guardian(const std::string& option);

}  // namespace elastic::host
