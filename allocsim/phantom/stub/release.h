// Names and argument lists that changed between releases: the one place that asks which it is.
//
// PHANTOM_TORCH is the release as major * 100 + minor, 215 for 2.15.
#pragma once

#include <string>
#include <utility>

#if __has_include(<c10/cuda/CUDAAllocatorConfig.h>)
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#if PHANTOM_TORCH >= 211
#include <c10/cuda/PeerToPeerAccess.h>
#endif

namespace allocator = c10::cuda::CUDACachingAllocator;
namespace c10::cuda::_internal {
// Exported by the library; in some releases no header says so.
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}  // namespace c10::cuda::_internal

using PoolId = std::pair<unsigned long long, unsigned long long>;

inline void begin_history() {
  const size_t entries = size_t{1} << 40;
  const auto when = allocator::RecordContext::NEVER;
#if PHANTOM_TORCH >= 211
  allocator::recordHistory(true, nullptr, entries, when, false, {});
#elif PHANTOM_TORCH >= 208
  allocator::recordHistory(true, nullptr, entries, when, false);
#else
  allocator::recordHistory(true, nullptr, entries, when);
#endif
}

inline void change_settings(const std::string& conf) {
#if PHANTOM_TORCH >= 210
  c10::CachingAllocator::setAllocatorSettings(conf);
#else
  allocator::setAllocatorSettings(conf);
#endif
}

// Up to 2.2 a scope belongs to one stream, which no op names.
#if PHANTOM_TORCH >= 203
inline void begin_pool(PoolId id) {
  allocator::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
}
inline void end_pool(PoolId id) { allocator::endAllocateToPool(0, id); }
#else
inline void begin_pool(PoolId) {
  TORCH_CHECK(false, "this release begins a pool for one stream, which no op names");
}
inline void end_pool(PoolId id) { begin_pool(id); }
#endif

inline void mark_pool(PoolId id, bool no_split, bool use_on_oom) {
#if PHANTOM_TORCH >= 210
  if (no_split) allocator::setNoSplit(0, id);
#else
  TORCH_CHECK(!no_split, "this release has no no_split pools");
#endif
#if PHANTOM_TORCH >= 211
  if (use_on_oom) allocator::setUseOnOOM(0, id, true);
#elif PHANTOM_TORCH >= 208
  if (use_on_oom) allocator::setUseOnOOM(0, id);
#else
  TORCH_CHECK(!use_on_oom, "this release has no use_on_oom pools");
#endif
}

inline void start_allocator() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::init(1);
#if PHANTOM_TORCH >= 211
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
}
