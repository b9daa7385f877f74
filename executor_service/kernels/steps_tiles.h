// Products by AMX tiles: sixteen rows by sixteen columns at once.

#pragma once

#ifdef __AMX_BF16__

#include <sys/syscall.h>
#include <unistd.h>

#include "panels.h"

namespace {

// Linux gives a process the tiles' state only when it asks for it.
bool tiles_are_granted() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return granted;
}

// Tiles of a thread: 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for columns, all of 16 rows of 64 bytes.
class Tiles {
  public:
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t num_rows[16] = {};
        } shape;
        std::fill_n(shape.row_bytes, 8, uint16_t{64});
        std::fill_n(shape.num_rows, 8, uint8_t{kTile});
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

template <bool kBothRows, bool kBothColumns>
void multiply_tiles(const uint16_t* low, const uint16_t* high, const Word* panel, Ahead ahead, int64_t dim, Sums* sums) {
    const char* from = static_cast<const char*>(ahead.from);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < dim; k += kStep, panel += 2 * kTile * kTile) {
        if (from != nullptr)
            for (int64_t line = 0; line < kStep; ++line) prefetch(from + (k + line) * 64);
        _tile_loadd(4, low + k, dim * 2);
        if constexpr (kBothRows) _tile_loadd(5, high + k, dim * 2);
        _tile_loadd(6, panel, 64);
        if constexpr (kBothColumns) _tile_loadd(7, panel + kTile * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (kBothColumns) _tile_dpbf16ps(1, 4, 7);
        if constexpr (kBothRows) _tile_dpbf16ps(2, 5, 6);
        if constexpr (kBothRows && kBothColumns) _tile_dpbf16ps(3, 5, 7);
    }
    constexpr int64_t stride = sizeof(sums->of[0]);
    _tile_stored(0, &sums->of[0][0], stride);
    _tile_stored(1, &sums->of[0][kTile], stride);
    _tile_stored(2, &sums->of[kTile][0], stride);
    _tile_stored(3, &sums->of[kTile][kTile], stride);
}

}  // namespace

#endif
