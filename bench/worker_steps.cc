// Times elastic_worker_progress() and elastic_worker_should_stop().
//
//   worker_steps <calls>      prints {"has_channel": …, "progress": ns, "stop": ns} per call

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "elastic/worker.h"

namespace {

template <typename Call>
double per_call(std::int64_t count, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < count; ++step) call(step);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(count);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 1000000;
  const int has_channel = elastic_worker_open();
  const double progress = per_call(count, [](std::int64_t step) {
    elastic_worker_progress(step);
    asm volatile("" ::: "memory");  // each call is made
  });
  const double stop = per_call(count, [](std::int64_t step) { elastic_worker_should_stop(step); });
  std::printf("{\"has_channel\": %s, \"progress\": %.2f, \"stop\": %.2f}\n",
              has_channel != 0 ? "true" : "false", progress, stop);
  return 0;
}
