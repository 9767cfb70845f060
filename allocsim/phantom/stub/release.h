// Names and argument lists that changed between releases: only this file checks the release.
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
// Exported by the library, but not declared by the headers of some releases.
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

// Up to 2.2 a pool's scope belongs to one stream, which the ops do not name.
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

inline void empty_pool(PoolId id) {
#if PHANTOM_TORCH >= 208
  allocator::emptyCache(id);
#else
  TORCH_CHECK(false, "this release empties no pool by itself");
#endif
}

// Calls of the destructor of MemPool, made one by one because a failed assertion in a destructor
// ends the process.  2.6 and 2.7 empty the "active" pool, which requires an object with its id.
#if PHANTOM_TORCH == 206 || PHANTOM_TORCH == 207
template <PoolId c10::cuda::MemPool::* id>
struct IdOfMemPool {
  friend PoolId& id_of(c10::cuda::MemPool& pool) { return pool.*id; }
};
template struct IdOfMemPool<&c10::cuda::MemPool::id_>;  // explicit instantiation may name it
PoolId& id_of(c10::cuda::MemPool& pool);

// Never deleted.  The object's original pool stays empty, and no script names it.
inline c10::cuda::MemPool& mempool_of(PoolId id) {
  constexpr size_t named_by_scripts = 1 << 16;
  static c10::cuda::MemPool* pool = [] {
    while (c10::cuda::MemPool::graph_pool_handle().second < named_by_scripts) {
    }
    return new c10::cuda::MemPool;
  }();
  id_of(*pool) = id;
  return *pool;
}
inline void empty_mempool(PoolId id) {
  c10::cuda::MemPoolContext active(&mempool_of(id));
  allocator::emptyCache();
}
#else
inline void empty_mempool(PoolId id) { empty_pool(id); }
#endif

inline void delete_mempool(PoolId id) {
#if PHANTOM_TORCH < 206
  TORCH_CHECK(false, "this release's MemPool holds no pool");
#elif PHANTOM_TORCH < 210
  TORCH_CHECK(allocator::getPoolUseCount(0, id) == 1, "the pool has not one use");
#elif PHANTOM_TORCH >= 211
  allocator::setUseOnOOM(0, id, false);
#endif
  allocator::releasePool(0, id);
  empty_mempool(id);
}

inline void start_allocator() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::init(1);
#if PHANTOM_TORCH >= 211
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
}
