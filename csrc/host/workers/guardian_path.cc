#include "host/workers/guardian_path.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

namespace elastic::host {
namespace {

constexpr const char* kName = "elastic-guardian";

// The shared object or program that this function was linked into.
std::filesystem::path own_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::error_code error;
  auto path = std::filesystem::canonical(info.dli_fname, error);
  // For the main program dladdr gives argv[0], which need not be a path from here.
  if (error) path = std::filesystem::canonical("/proc/self/exe", error);
  return error ? std::filesystem::path() : path;
}

}  // namespace

Result<std::string> find_guardian(const std::string& option) {
  std::vector<std::filesystem::path> places;
  if (!option.empty()) {
    places.emplace_back(option);
  } else {
    const std::filesystem::path folder = own_file().parent_path();
    places.push_back(folder / "bin" / kName);
    places.push_back(folder / ".." / ELASTIC_LIBEXEC_FROM_LIB / "elastic" / kName);
    places.push_back(std::filesystem::path(ELASTIC_LIBEXEC_INSTALLED) / "elastic" / kName);
  }
  std::string tried;
  for (const auto& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place.lexically_normal().string();
    tried += (tried.empty() ? "" : ", ") + place.lexically_normal().string();
  }
  return Status(StatusCode::kNotFound, "cannot find the guardian program (tried " + tried +
                                           "); reinstall elastic, or name it in guardian_path");
}

}  // namespace elastic::host
