// The tile registers of AMX: 16 rows of 64 bytes each. Where the compiler was not told of them, nothing here is.
#pragma once
#ifdef __AMX_TILE__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lamina {

inline bool may_use_amx() {  // Linux wants to be asked once per process
  static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
  return granted;
}

struct Tiles {  // all eight tiles of this thread while it lives
  Tiles() {
    alignas(64) uint8_t config[64] = {1};
    for (int i = 0; i < 8; ++i) config[16 + 2 * i] = 64, config[48 + i] = 16;
    _tile_loadconfig(config);
  }
  ~Tiles() { _tile_release(); }
};

}  // namespace lamina
#endif
